"""A registered benchmark: its file, the runs that belong to it, its verdicts, and its figure."""

import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy.stats import ttest_1samp

from fedmrn_app.config.compose import compose_values
from fedmrn_app.errors import RunError
from fedmrn_app.report.benchmark import NOT_RUN, cells_of, table_of_benchmark
from fedmrn_app.report.cli import main
from fedmrn_app.report.comparison import has_value
from fedmrn_app.report.registration import Registration, read_registration
from fedmrn_app.report.runs import load_rounds, load_runs
from fedmrn_app.report.time_to_target import table_of_times, times_of
from fedmrn_app.report.traffic import DOWN, UP, first_download, socket_bytes
from fedmrn_app.report.verdicts import BETTER, EQUIVALENT, UNDECIDED, WORSE, holm, p_beyond, p_different, verdicts
from fedmrn_app.results.resume import flatten
from tests.paths import ROOT
from tests.run_folder import make_run

KEPT = ROOT / "results" / "fashion_mnist"
SMALL: dict[str, Any] = {
    "title": "A title", "question": "A question?", "reference": "FedAvg", "margin": 0.5, "alpha": 0.05,
    "endpoints": ["mean of all rounds", "mean of the last third"], "correction": "holm", "rounds": 3,
    "seeds": [0, 1, 2], "command": "fedmrn", "partitions": {"natural": "dataset=shakespeare"},
    "rows": {"FedAvg": "strategy=fedavg", "EDEN": {"settings": "strategy=eden strategy.bits=1"}},
}  # fmt: skip
DATA = {"dataset": {"name": "shakespeare"}}


def leave(folder: Path, strategy: str, seed: int, *accuracies: float, top: Any = None, **settings: Any) -> None:
    make_run(folder / f"{strategy}{len(list(folder.glob('*')))}", strategy, seed, accuracies, top=DATA | (top or {}),
             **settings)  # fmt: skip


def lines_of(table: list[str]) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table if line.startswith("|")][2:]


def test_runs_are_found_by_their_settings(tmp_path: Path) -> None:
    for seed in range(3):
        leave(tmp_path, "fedavg", seed, 0.5, 0.6, 0.7 + seed / 100)
    for seed in (0, 2):
        leave(tmp_path, "eden", seed, 0.5, 0.6, 0.71 + seed / 100, bits=1)
    leave(tmp_path, "eden", 0, 0.1, 0.1, 0.1, bits=2)  # another row's, which is not registered
    leave(tmp_path, "eden", 7, 0.1, 0.1, 0.1, bits=1)  # another seed
    leave(tmp_path, "eden", 0, 0.1, 0.1, bits=1)  # another number of rounds
    fedavg, eden = lines_of(table_of_benchmark(Registration.model_validate(SMALL), load_runs(tmp_path)))
    assert fedavg[:3] == ["FedAvg", "natural", "3"]
    assert fedavg[4:6] == fedavg[7:9] == ["", ""]
    assert eden[:3] == ["EDEN", "natural", "2 of 3"]
    assert eden[4] == "+0.33 [+0.33, +0.33]"
    assert eden[5:9] == [EQUIVALENT, "72.00 [59.29, 84.71]", "+1.00 [+1.00, +1.00]", BETTER]
    assert eden[9] == "72.00"
    assert eden[-1] == "FedAvg"
    brief = lines_of(table_of_benchmark(Registration.model_validate(SMALL), load_runs(tmp_path), brief=True))
    assert brief[0] == ["FedAvg", "natural", "3", fedavg[3].split()[0], "", fedavg[6].split()[0], "", fedavg[10]]
    assert brief[1][:3] == eden[:3]
    assert brief[1][3:] == [eden[3].split()[0], f"{eden[4]} {EQUIVALENT}", "72.00", f"{eden[7]} {BETTER}", eden[10]]


def test_a_brief_table_names_the_rows_without_runs_below(tmp_path: Path) -> None:
    for seed in range(3):
        leave(tmp_path, "fedavg", seed, 0.5, 0.6, 0.7 + seed / 100)
    whole, brief = (
        table_of_benchmark(Registration.model_validate(SMALL), load_runs(tmp_path), brief=brief)
        for brief in (False, True)
    )
    line = "Registered and not run yet: EDEN."
    assert [[row[0] for row in lines_of(table)] for table in (whole, brief)] == [["FedAvg", "EDEN"], ["FedAvg"]]
    assert (line in whole, line in brief) == (False, True)


def test_averaged_models_are_a_row_of_the_same_runs(tmp_path: Path) -> None:
    for seed in range(3):
        leave(tmp_path, "fedavg", seed, 0.5, 0.6, 0.7 + seed / 100)
    for seed, averaged in enumerate(([0.5, 0.55, 0.72], [0.5, 0.55, 0.73], [math.nan, 0.55, 0.9])):
        file = tmp_path / f"fedavg{seed}" / "rounds.csv"
        pd.read_csv(file).assign(averaged_accuracy=averaged).to_csv(file, index=False, na_rep="nan")
    rows = {"FedAvg": "strategy=fedavg", "its mean": {"averages": "FedAvg"}}
    registration = Registration.model_validate({**SMALL, "rows": rows})
    assert len(list(registration.commands())) == 3
    _, mean = lines_of(table_of_benchmark(registration, load_runs(tmp_path)))
    assert mean[:3] == ["its mean", "natural", "2 of 3"]  # one run lacks the first round's
    assert mean[6:8] == ["72.50 [66.15, 78.85]", "+2.00 [+2.00, +2.00]"]
    assert mean[9] == "72.50"


def test_registered_comparisons_without_runs_count_and_are_said(tmp_path: Path) -> None:
    for seed in range(3):
        leave(tmp_path, "fedavg", seed, 0.5, 0.6, 0.7)
    table = table_of_benchmark(Registration.model_validate(SMALL), load_runs(tmp_path))
    _, eden = lines_of(table)
    assert eden == ["EDEN", "natural", "0 of 3", "", "", NOT_RUN, "", "", NOT_RUN, "", "", "", "FedAvg"]
    assert "over the 2 registered comparisons" in table[-1]


@pytest.mark.parametrize(
    ("rows", "top", "code"),
    [
        ({"EDEN": "strategy=eden"}, {}, "ambiguous"),  # runs with one bit and with two
        ({"EDEN": "strategy=eden strategy.bits=1", "again": "strategy.bits=1"}, {}, "ambiguous"),
        ({"EDEN": "strategy=eden strategy.bitz=1"}, {}, "setting"),
        ({"EDEN": "strategy=eden strategy.bits=1"}, {"local": {"lr": 0.1, "epochs": 3}}, "mixed"),
    ],
)
def test_runs_that_do_not_fit_are_refused(rows: dict[str, str], top: Any, code: str, tmp_path: Path) -> None:
    leave(tmp_path, "fedavg", 0, 0.5, 0.6, 0.7, top={"local": {"lr": 0.1, "epochs": 5}})
    for bits in (1, 2):
        leave(tmp_path, "eden", 0, 0.5, 0.6, 0.7, bits=bits, top={"local": {"lr": 0.1, "epochs": 5}} | top)
    registration = Registration.model_validate({**SMALL, "rows": {"FedAvg": "strategy=fedavg", **rows}})
    with pytest.raises(RunError) as refused:
        cells_of(registration, load_runs(tmp_path))
    assert (refused.value.code, refused.value.key) == (code, "--benchmark")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "change",
    [
        {"margin": 0}, {"alpha": 1}, {"correction": "none"}, {"endpoints": ["last round"]}, {"seeds": []}, {"more": 1},
        {"reference": "FedSGD"}, {"rows": {"FedAvg": "fedavg"}}, {"rounds": 0},
        {"rows": {"FedAvg": {"settings": "strategy=fedavg", "reference": "nobody"}}},
        {"rows": {"FedAvg": {"settings": ""}}},
        {"rows": {"FedAvg": "strategy=fedavg", "mean": {"averages": "nobody"}}},
        {"rows": {"FedAvg": "strategy=fedavg", "mean": {"averages": "FedAvg"}, "again": {"averages": "mean"}}},
        {"rows": {"FedAvg": "strategy=fedavg", "mean": {"averages": "FedAvg", "settings": "strategy=eden"}}},
    ],
    ids=str,
)  # fmt: skip
def test_a_file_that_registers_no_benchmark_is_refused_in_one_line(change: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "benchmark.yaml"
    file.write_text(yaml.safe_dump(SMALL))
    assert read_registration(file).reference_of("EDEN") == "FedAvg"
    assert read_registration(file).reference_of("FedAvg") is None
    file.write_text(yaml.safe_dump(SMALL | change))
    with pytest.raises(RunError) as refused:
        read_registration(file)
    assert (refused.value.code, refused.value.value) == ("registration", str(file))
    assert "\n" not in str(refused.value)
    for text in ("[", "3"):
        file.write_text(text)
        with pytest.raises(RunError):
            read_registration(file)
    with pytest.raises(RunError):
        read_registration(tmp_path / "none.yaml")


def test_verdicts_are_the_four() -> None:
    around = np.array([-0.02, 0.0, 0.01, -0.01, 0.02])
    differences = [around + 1, around - 1, around, around + 0.3, 30 * around, around[:1], around[:0]]
    assert verdicts(differences, 0.5, 0.05) == [
        BETTER, WORSE, EQUIVALENT, EQUIVALENT, UNDECIDED, UNDECIDED, UNDECIDED,
    ]  # fmt: skip


def test_many_comparisons_need_more() -> None:
    rng = np.random.default_rng(0)
    one = rng.normal(1.0, 0.8, 5)
    assert p_different(one) == pytest.approx(ttest_1samp(one, 0).pvalue)
    greater, less = ttest_1samp(one, -0.5, alternative="greater"), ttest_1samp(one, 0.5, alternative="less")
    assert p_beyond(one, 0.5) == pytest.approx(max(greater.pvalue, less.pvalue))
    assert verdicts([one], 0.1, 0.05) == [BETTER]
    assert verdicts([one, *[np.empty(0)] * 20], 0.1, 0.05)[0] == UNDECIDED


def test_holm_is_that_of_the_textbook() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_few_wrong_verdicts_where_nothing_differs() -> None:
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(300):
        found = verdicts(list(rng.normal(0, 1, (10, 5))), 0.5, 0.05)
        wrong += BETTER in found or WORSE in found
    assert wrong <= 0.08 * 300


def test_traffic_is_that_of_the_measured_sockets() -> None:
    for content, at_socket in (((24_075, 57_407), (36_414, 62_940)), ((1_567_591, 1_568_639), (1_586_274, 1_576_402))):
        assert socket_bytes(*content) == pytest.approx(at_socket, rel=0.001)
    assert first_download(1000, 100, 100, 1) == pytest.approx(100 * (4000 * 1.001476 + 5448))
    assert first_download(1000, 100, 10, 1) == pytest.approx(first_download(1000, 100, 100, 1) / 10)


def test_traffic_of_rounds_counts_each_client(tmp_path: Path) -> None:
    leave(tmp_path, "eden", 0, 0.5, 0.6)
    up, down = socket_bytes(100, 400)
    evaluation = 5 * (214 * (1 + UP.share) + 50 * (1 + DOWN.share))  # five clients evaluate
    each = (9 * up + 10 * down + evaluation) / 1e6  # nine replies, ten orders
    assert load_rounds(load_runs(tmp_path))["socket_mb"].tolist() == pytest.approx([each, 2 * each])


def timed(*targets: float | None) -> Registration:
    places = {"natural": {"settings": "dataset=shakespeare", "target": targets[0]}}
    return Registration.model_validate(SMALL | {"partitions": places})


def test_time_is_that_of_training_lines_and_replies(tmp_path: Path) -> None:
    leave(tmp_path, "fedavg", 0, 0.5, 0.6, 0.7)
    leave(tmp_path, "eden", 0, 0.9, 0.3, 0.5, bits=1)
    leave(tmp_path, "eden", 1, 0.1, 0.2, 0.3, bits=1)
    runs = load_runs(tmp_path)
    fedavg, eden = times_of(timed(0.55), runs, lines=(1.0, 4.0))
    assert fedavg.rounds.tolist() == [2.0]  # the mean of 0.5 and 0.6
    assert eden.rounds.tolist()[:1] == [1.0]
    assert np.isnan(eden.rounds[1])
    rounds = load_rounds(runs).loc[fedavg.cell.runs.index[0]]
    up, down = socket_bytes(100, 400)
    computed = rounds["train_seconds"] + rounds["compress_seconds"] + 9 * rounds["decode_seconds"]
    for line, seconds in zip((1.0, 4.0), fedavg.seconds[:, 0], strict=True):
        sent = 8 * up / (line * 1e6) + 8 * down / (10 * line * 1e6)
        assert seconds == pytest.approx(computed[:2].sum() + 2 * sent)
    ((slow,),) = times_of(timed(0.55), runs[runs["strategy"] == "fedavg"], (1.0,), train=3600.0)[0].seconds
    assert slow == pytest.approx(7200, rel=0.01)
    table = lines_of(table_of_times(timed(0.55), runs))
    assert table[0][:5] == ["FedAvg", "natural", "55 %", "1", "2.0"]
    assert table[1][3:] == ["1 of 2", *["not in all"] * 4]
    hours = "\n".join(table_of_times(timed(0.55), runs, train=7200.0))
    assert "hours at 1 Mbit/s" in hours
    assert "| 4.00 |" in hours


def test_time_needs_a_target(tmp_path: Path) -> None:
    leave(tmp_path, "fedavg", 0, 0.5, 0.6, 0.7)
    with pytest.raises(RunError) as refused:
        times_of(timed(None), load_runs(tmp_path))
    assert (refused.value.code, refused.value.key) == ("no-target", "--time")


@pytest.mark.parametrize(
    "words", [["--train-seconds", "5"], ["--time", "F", "--train-seconds", "-1"], ["--time", "F", "--rounds", "2"]]
)
def test_words_that_do_not_go_with_time_are_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedmrn-report", str(tmp_path), *words])
    with pytest.raises(SystemExit):
        main()
    assert words[-2] in capsys.readouterr().err


@pytest.mark.slow
def test_kept_runs_give_the_table_and_the_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, figure = tmp_path / "benchmark.yaml", tmp_path / "figure.png"
    rows = {
        "FedAvg": "strategy=fedavg downlink.dtype=float32",
        "FedMRN": "strategy=fedmrn uplink.bits=0.2 downlink.dtype=float32",
    }
    kept: dict[str, Any] = {
        "rounds": 60,
        "partitions": {"IID": "dataset=fashion_mnist partition=iid device=cuda"},
        "rows": rows,
    }
    file.write_text(yaml.safe_dump(SMALL | kept))
    words = ["fedmrn-report", "--benchmark", str(file), str(KEPT / "iid_60_rounds"), "--figure", str(figure)]
    monkeypatch.setattr(sys, "argv", words)
    assert main() == 0
    _, fedmrn = lines_of(capsys.readouterr().out.splitlines())
    assert fedmrn[4:9] == ["-1.00 [-1.28, -0.72]", WORSE, "90.90 [90.64, 91.15]", "-0.42 [-0.66, -0.18]", WORSE]
    assert figure.read_bytes()[:4] == b"\x89PNG"
    figure.unlink()
    file.write_text(
        yaml.safe_dump(SMALL | kept | {"partitions": {"IID": {"settings": "partition=iid", "target": 0.9}}})
    )
    timed = ["--time", str(file), str(KEPT / "gpu_60_rounds"), str(KEPT / "iid_60_rounds"), "--figure", str(figure)]
    monkeypatch.setattr(sys, "argv", ["fedmrn-report", *timed])
    assert main() == 0
    assert "90 %" in capsys.readouterr().out
    assert figure.read_bytes()[:4] == b"\x89PNG"
    for words in (["--figure", str(figure)], ["--benchmark", str(file), "--figure", "a.pdf"]):
        monkeypatch.setattr(sys, "argv", ["fedmrn-report", str(KEPT / "iid_60_rounds"), *words])
        with pytest.raises(SystemExit) if words[0] == "--figure" else pytest.raises(AssertionError):
            assert main() == 0
        assert re.search("--figure", capsys.readouterr().err)


REGISTERED = sorted((ROOT / "results").glob("*.yaml"))


@pytest.mark.parametrize("file", [one for one in REGISTERED if one.stem != "claims"], ids=lambda path: path.stem)
def test_registered_runs_have_names_of_their_own_and_the_first_seed_comes_first(file: Path) -> None:
    registration = read_registration(file)
    runs = list(registration.commands())
    rows = sum(not row.averages for row in registration.rows.values())
    assert len(dict(runs)) == len(runs) == rows * len(registration.partitions) * len(registration.seeds)
    seeds = [next(word for word in words if word.startswith("seed=")) for _, words in runs]
    assert list(dict.fromkeys(seeds)) == [f"seed={seed}" for seed in registration.seeds]
    assert seeds == sorted(seeds, key=lambda word: registration.seeds.index(int(word[5:])))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["benchmark", "benchmark_short", "budget_short", "cifar10", "samples", "control", "averaging"]
)
def test_registered_runs_are_those_that_their_row_looks_for(name: str) -> None:
    registration = read_registration(ROOT / "results" / f"{name}.yaml")
    one_seed = registration.model_copy(update={"seeds": registration.seeds[:1]})
    found = [flatten(compose_values(words)) for _, words in one_seed.commands()]
    rows = [(place, row) for place in registration.partitions.values() for row in registration.rows.values()]
    rows = [(place, row) for place, row in rows if not row.averages]
    for settings, (place, row) in zip(found, rows, strict=True):
        for word in f"{place.settings} {row.settings}".split():
            key, _, value = word.partition("=")
            assert has_value(settings.get(key, settings.get(f"{key}.name")), value), (word, settings)


def test_rates_are_those_of_partitions() -> None:
    rows = {**SMALL["rows"], "EDEN": {"settings": "strategy=eden", "rates": {"natural": 0.3}}}
    commands = Registration.model_validate({**SMALL, "rows": rows}).commands()
    assert ["local.lr=0.3" in words for _, words in commands] == [False, True] * 3
    rows["EDEN"] = {"settings": "strategy=eden", "rates": {"elsewhere": 0.3}}
    with pytest.raises(ValueError, match="rates of elsewhere: is none of the partitions natural"):
        Registration.model_validate({**SMALL, "rows": rows})
