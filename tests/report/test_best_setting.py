"""`fedmrn-report --choose` and `--last`: what stands in their tables of runs whose figures are known."""

import sys
from pathlib import Path

import pytest

from fedmrn_app.errors import RunError
from fedmrn_app.report.best_setting import choose
from fedmrn_app.report.cli import main
from fedmrn_app.report.groups import read_groups
from fedmrn_app.report.page import markdown_means
from tests.run_folder import make_run


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Of EDEN at three values of a setting, one of them with two seeds, and FedAvg, which has no such setting."""
    curves = {"0.1": (0.2, 1.0, 0.5), "10": (0.2, 0.5, 0.6), "2": (0.2, 0.5, 0.5)}
    runs = [
        make_run(tmp_path / bits, "eden", 0, curve, bits=float(bits) if "." in bits else int(bits))
        for bits, curve in curves.items()
    ]
    runs.append(make_run(tmp_path / "again", "eden", 1, (0.2, 0.7, 0.9), bits=2))
    return [*runs, make_run(tmp_path / "plain", "fedavg", 0, (0.1, 0.2, 0.3))]


def test_a_row_for_other_settings_and_a_column_for_each_value(runs: list[Path]) -> None:
    head, _, eden, plain = choose(read_groups(runs), "strategy.bits", last=1)
    assert head == "| run | data | seeds | rounds | 0.1 | 2 | 10 | null | strategy.bits |"
    assert eden == "| eden | shakespeare, natural | 1-2 | 3 | 50.00 | **70.00 ± 28.28** | 60.00 |  | 2 |"
    assert plain == "| fedavg | shakespeare, natural | 1 | 3 |  |  |  | **30.00** | null |"


def test_the_mean_over_the_last_rounds_is_what_counts(runs: list[Path]) -> None:
    _, _, eden, _ = choose(read_groups(runs), "strategy.bits", last=2)
    assert eden.endswith("| **75.00** | 65.00 ± 21.21 | 55.00 |  | 0.1 |")
    _, _, *rows = markdown_means(read_groups(runs), last=2)
    assert [row.split(" | ")[4] for row in rows] == ["75.00", "55.00", "65.00 ± 21.21", "25.00"]
    assert "| accuracy of the last 2 rounds, % | best accuracy, % |" in markdown_means(read_groups(runs), last=2)[0]


def test_other_settings_tell_rows_apart(tmp_path: Path) -> None:
    settings = [{"bits": bits, "scale": scale} for bits in (1, 2) for scale in ("a", "b")]
    runs = [make_run(tmp_path / str(n), "eden", 0, (0.1 * n,), **one) for n, one in enumerate(settings)]
    _, _, *rows = choose(read_groups(runs), "strategy.bits", last=1)
    assert [row.split(" | ")[0] for row in rows] == ["| eden strategy.scale=a", "| eden strategy.scale=b"]
    assert [row.split(" | ")[4:] for row in rows] == [["0.00", "**20.00**", "2 |"], ["10.00", "**30.00**", "2 |"]]


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (["--choose", "strategy.bit"], "--choose strategy.bit: no run's configuration has it"),
        (["--mean", "--last", "4"], "has 3 rounds"),
        (["--last", "2"], "--last 2: goes with --mean, --across, --within, --choose or --page"),
        (["--mean", "--last", "0"], "0: must be at least 1"),
    ],
)
def test_what_the_runs_have_not_is_refused_in_one_line(
    runs: list[Path],
    said: list[str],
    answer: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedmrn-report", str(runs[0].parent), *said])
    try:
        code: object = main()
    except SystemExit as exit:
        code = exit.code
    assert code == 2
    assert answer in capsys.readouterr().err.splitlines()[-1]


def test_a_setting_of_no_run_is_refused(runs: list[Path]) -> None:
    with pytest.raises(RunError, match=r"--choose local\.rate: no run's configuration has it"):
        choose(read_groups(runs), "local.rate", last=1)
