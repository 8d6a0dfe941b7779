"""The `fedmrn-report` command: its output, and its errors in one line."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedmrn_app.learning.evaluate import Evaluation, evaluate, measured_norms
from fedmrn_app.report.cli import main
from fedmrn_app.results.run_folder import RunFolder
from fedmrn_app.results.summary import summarize
from fedmrn_app.tasks.validation import load_training
from tests.paths import ROOT
from tests.run_folder import MADE_WITH, begun, make_run, row

Report = Callable[..., tuple[object, str, str]]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Report:
    """Return a function that runs the command and returns its code, output and errors."""

    def run(*words: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedmrn-report", *map(str, words)])
        try:
            code: object = main()
        except SystemExit as ended:
            code = ended.code
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


def leave_summary(folder: Path, metric: str = "accuracy", **changes: Any) -> Path:
    """Leave the files that the plain table needs, as versions without config.yaml wrote them."""
    summary = {
        "strategy": "fedmrn", "dataset": "digits", "partition": "iid", "metric": metric, "rounds": 2,
        "final_accuracy": None, "best_accuracy": None, f"final_{metric}": 0.51239, f"best_{metric}": 0.75,
        "uplink_bytes_per_client_round": 2706.4, "uplink_bits_per_parameter": 1.0081, "clients_failed": 3,
        "downlink_bits_per_parameter": 2.5, "total_bits_per_parameter": 3.5081,
        "made_with": MADE_WITH,
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps({**summary, **changes}))
    (folder / "rounds.csv").write_text(
        "round,uplink_bits_per_parameter,downlink_bits_per_parameter\n1,1.2,3\n2,0.8441,1.9\n"
    )
    return folder


def test_plain_table_has_a_row_for_each_run_in_the_order_of_their_numbers(tmp_path: Path, report: Report) -> None:
    for number in (10, 9):
        leave_summary(tmp_path / str(number), strategy=f"run{number}")
    assert report(tmp_path, tmp_path / "9")[1].splitlines() == [
        "| strategy | data | rounds | final accuracy | best accuracy | uplink per client, B | bits per parameter, up "
        "| down | both | in the last round, up | down | rejected |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
        "| run9 | digits, iid | 2 | 0.5124 | 0.7500 | 2,706 | 1.008 | 2.500 | 3.508 | 0.844 | 1.900 | 3 |",
        "| run10 | digits, iid | 2 | 0.5124 | 0.7500 | 2,706 | 1.008 | 2.500 | 3.508 | 0.844 | 1.900 | 3 |",
    ]
    other = leave_summary(tmp_path / "11", "mean_iou")
    assert "| final mean iou | best mean iou |" in report(other)[1]
    head, _, *rows = report(tmp_path / "9", other)[1].splitlines()
    assert "| final | best |" in head
    assert "| 0.5124 accuracy | 0.7500 accuracy |" in rows[0]
    assert "| 0.5124 mean iou | 0.7500 mean iou |" in rows[1]


@pytest.mark.slow
def test_options_choose_the_table_and_write_the_page(tmp_path: Path, report: Report) -> None:
    for n, alpha in enumerate((1, 2)):
        make_run(tmp_path / "runs" / str(n), "eden", 0, (0.5, 0.6), top={"alpha": alpha})
    make_run(tmp_path / "runs" / "2", "fedavg", 0, (0.5, 0.6), top={"alpha": 1})
    runs, page = tmp_path / "runs", tmp_path / "page"
    footnote = "\n\nUnless a name says otherwise: alpha=1.\n"
    for words, start, foot in (
        (["--mean", "--last", "2"], "| run | data | seeds | rounds | accuracy of the last 2 rounds, % |", True),
        (["--across"], "| run | seeds | rounds | shakespeare, natural: best, % (paper) |", True),
        (["--against", "strategy=fedavg", "--last", "2"], "| run | against | data | rounds | common seeds |", False),
        (["--until", "0.55"], "| run | data | seeds | rounds | seconds |", True),
        (["--within", "0.001,9"], "| run | data | seeds | 0.001 MB up | 9 MB up |", True),
        (["--choose", "alpha"], "| run | data | seeds | rounds | 1 | 2 | alpha |", False),
    ):
        code, out, _ = report(runs, *words)
        assert code == 0
        assert out.startswith(start)
        assert out.endswith(footnote) is foot
    code, out, _ = report(runs, "--against", "strategy=fedavg", "--page", page)
    assert code == 0
    for text in ((page / name).read_text() for name in ("report.md", "report.html")):
        assert "Difference from strategy=fedavg" in text
        assert "Differences are paired by seed" in text
    code, out, _ = report(runs, "--tables", "--page", page, "--last", "2", "--keep", tmp_path / "kept")
    assert code == 0
    assert out.endswith(f"\n\npage in {page / 'report.html'}\n\n3 runs kept in {tmp_path / 'kept'}\n")
    for text in (out, *((page / name).read_text() for name in ("report.md", "report.html"))):
        assert "Seconds and shares, means over rounds and seeds" in text
    assert "| accuracy of the last 2 rounds, % |" in (page / "report.md").read_text()
    for name, label in (("rounds", "test loss, mean of 2 rounds"), ("bits", "accuracy of the last 2 rounds"),
                        ("traffic", "test accuracy, mean of 2 rounds")):  # fmt: skip
        assert label in (page / f"{name}.svg").read_text()


def test_runs_that_have_not_ended_are_counted(tmp_path: Path, report: Report) -> None:
    leave_summary(tmp_path / "runs" / "ended")
    (tmp_path / "runs" / "failed").mkdir()
    (tmp_path / "runs" / "failed" / "run.log").write_text("2026-01-01 00:00:00 failed\n")
    code, out, err = report(tmp_path / "runs")
    assert (code, len(out.splitlines())) == (0, 3)
    assert err == f"fedmrn-report: 1 run without a summary.json, such as {tmp_path}/runs/failed, is left out\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--until", "85"], "--until 85: the accuracy is a share of one, such as 0.85"),
        (["--time", "nope.yaml"], "--time nope.yaml: cannot be read: No such file or directory"),
        (["--keep", "run/summary.json/kept"], "run/summary.json/kept/run: Not a directory"),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    words: list[str], said: str, tmp_path: Path, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "run", "eden", 0, (0.5, 0.6))
    monkeypatch.chdir(tmp_path)
    code, _, err = report("run", *words)
    assert (code, err) == (1 if "--keep" in words else 2, f"fedmrn-report: {said}\n")


def test_folders_without_a_finished_run_are_refused_in_one_line(tmp_path: Path, report: Report) -> None:
    run = leave_summary(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    (leave_summary(tmp_path / "broken") / "summary.json").write_text("{")
    (leave_summary(tmp_path / "other") / "summary.json").write_text('{"strategy": "fedmrn"}')
    (leave_summary(tmp_path / "unfinished") / "rounds.csv").unlink()
    (leave_summary(tmp_path / "short") / "rounds.csv").write_text("round\n")
    for name in ("nowhere", "empty", "broken", "other", "unfinished", "short"):
        code, out, err = report(run, tmp_path / name)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"fedmrn-report: {tmp_path / name}: ")


def test_first_rounds_of_a_run_without_all_columns_are_refused_in_one_line(tmp_path: Path, report: Report) -> None:
    run = leave_summary(tmp_path / "run")
    code, out, err = report(run, "--rounds", "2")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"fedmrn-report: {run}: cannot be read")


@pytest.mark.parametrize(
    "words",
    [
        *([f"--within={amounts}"] for amounts in ("", "3,", "0,3", "-1", "nan", "inf", "many")),
        ["--choose", "strategy.bit"],
        *(["--against", chosen] for chosen in ("", "strategy", "strategy=fedavg", "strategy=eden seed=")),
        ["--mean", "--last", "4"],
        ["--last", "2"],
        ["--mean", "--last", "0"],
        ["--rounds", "4"],
        ["--rounds", "2", "--test"],
    ],
)
def test_options_that_the_runs_cannot_satisfy_are_refused(words: list[str], tmp_path: Path, report: Report) -> None:
    make_run(tmp_path / "run", "eden", 0, (0.2, 0.5, 0.6))
    code, out, err = report(tmp_path, *words)
    assert (code, out) == (2, "")
    assert words[0].partition("=")[0] in err.splitlines()[-1] or "--last" in err.splitlines()[-1]


def leave_model(path: Path, overrides: tuple[str, ...]) -> Evaluation:
    """Leave a run's folder as after a round, and return its model's result on the test split."""
    run = begun(*overrides, "rounds=1")
    config, task, model = run.config, run.task, run.model
    folder = RunFolder(path)
    folder.create(run.values, model, run.state)
    folder.add_round(row(1, 0.5), model, run.state)
    facts = {"dataset": "digits", "partition": "iid", "evaluated_on": "validation", "made_with": MADE_WITH}
    folder.finish(summarize(folder.rounds, {"strategy": run.values["strategy"]["name"], **facts}))
    by = load_training(task, config.validation, config.seed) if config.static_norm == "train" else None
    with measured_norms(model, task, by):
        return evaluate(model, task, task.load("test"))


@pytest.mark.parametrize(
    "overrides",
    [
        ("strategy=fedavg", "validation=0.2", "seed=3"),
        ("strategy=submodel", "model=digits", "model.norm=static", "static_norm=train", "validation=0.2", "seed=3"),
    ],
)
def test_models_are_evaluated_on_the_test_split(tmp_path: Path, overrides: tuple[str, ...], report: Report) -> None:
    reached = leave_model(tmp_path / "run", overrides)
    code, out, _ = report("--test", tmp_path)
    assert code == 0
    name = overrides[0].removeprefix("strategy=")
    assert out.splitlines() == [
        "| run | data | seeds | rounds | final accuracy, % | test accuracy, % | test loss |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        f"| {name} | digits, iid, validation | 1 | 1 | 50.00 | {100 * reached.headline:.2f} | {reached.loss:.4f} |",
    ]
    for state in ("model.safetensors", "previous.safetensors"):
        (tmp_path / "run" / state).unlink()
    code, _, err = report("--test", tmp_path)
    assert (code, err.count("\n"), "model.safetensors" in err) == (2, 1, True)


@pytest.mark.slow
def test_a_reader_may_stop_early() -> None:
    command = [str(Path(sys.executable).with_name("fedmrn-report")), str(ROOT / "results" / "digits" / "methods")]
    closed, end = os.pipe()
    os.close(closed)
    ended = subprocess.run(command, stdout=end, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    os.close(end)
    assert (ended.returncode, ended.stderr) == (0, "")
