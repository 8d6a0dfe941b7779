"""`fedmrn-report --within` and `--page --last`: what stands in them of runs whose figures are known."""

import sys
from pathlib import Path

import numpy as np
import pytest

from fedmrn_app.report.at_traffic import within
from fedmrn_app.report.cli import main
from fedmrn_app.report.groups import read_groups
from tests.run_folder import make_run

ROUND_UP, ROUND_BOTH = 9 * 100 / 1e6, (9 * 100 + 10 * 400) / 1e6  # MB of a round of `row`


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [
        make_run(tmp_path / "0", "fedmrn", 0, (0.2, 0.4, 0.9, 0.7)),
        make_run(tmp_path / "1", "fedmrn", 1, (0.4, 0.4, 0.7, 0.7)),
        make_run(tmp_path / "2", "eden", 0, (0.25, 0.5)),
    ]


def cells(lines: list[str]) -> list[list[str]]:
    return [line.strip("| ").split(" | ")[2:] for line in lines[2:]]


def test_the_last_round_that_fits_counts_and_the_best_is_marked(runs: list[Path]) -> None:
    lines = within(read_groups(runs), [ROUND_UP, 3.5 * ROUND_UP], last=1)
    assert (
        lines[0] == "| run | data | seeds | 0.0009 MB up | 0.00315 MB up | 0.0009 MB both ways | 0.00315 MB both ways |"
    )
    assert lines[2].startswith("| fedmrn | shakespeare, natural | 2 | **30.00 ± 14.14** | **80.00 ± 14.14** |")
    assert lines[3] == "| eden | shakespeare, natural | 1 | 25.00 | (50.00) |  |  |"


def test_both_ways_count_what_failed_clients_were_sent(runs: list[Path]) -> None:
    fedmrn, eden = cells(within(read_groups(runs), [1.01 * ROUND_BOTH, 2.01 * ROUND_BOTH], last=1))
    assert fedmrn[3:] == ["**30.00 ± 14.14**", "40.00 ± 0.00"]
    assert eden[3:] == ["25.00", "**(50.00)**"]


def test_the_mean_is_of_the_rounds_up_to_the_one_that_fits(runs: list[Path]) -> None:
    fedmrn, _ = cells(within(read_groups(runs), [3.5 * ROUND_UP, 9], last=2))
    assert fedmrn[1].strip("*") == "60.00 ± 7.07"  # of (0.4 + 0.9) / 2 and (0.4 + 0.7) / 2
    assert fedmrn[2].strip("*") == "(75.00 ± 7.07)"
    (group,) = read_groups(runs[:1])
    assert group.trailing("accuracy", 3) == pytest.approx(np.array([[0.2, 0.3, 0.5, 2 / 3]]))


def test_other_data_have_a_best_of_their_own(runs: list[Path]) -> None:
    summary = runs[2].read_text()
    runs[2].write_text(summary.replace("natural", "iid"))
    fedmrn, eden = cells(within(read_groups(runs), [9], last=1))
    assert fedmrn[1:] == ["**(70.00 ± 0.00)**", "**(70.00 ± 0.00)**"]
    assert eden[1:] == ["**(50.00)**", "**(50.00)**"]


def test_command_prints_it_and_draws_means(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page"
    command = ["fedmrn-report", *(str(run.parent) for run in runs), "--page", str(page), "--last", "2"]
    monkeypatch.setattr(sys, "argv", [*command, "--within", "0.001,9"])
    assert main() == 0
    assert capsys.readouterr().out.startswith("| run | data | seeds | 0.001 MB up | 9 MB up |")
    assert "| accuracy of the last 2 rounds, % |" in (page / "report.md").read_text()
    for name, words in (("rounds", "test loss, mean of 2 rounds"), ("bits", "accuracy of the last 2 rounds")):
        assert words in (page / f"{name}.svg").read_text()
    assert "test accuracy, mean of 2 rounds" in (page / "traffic.svg").read_text()


@pytest.mark.parametrize("said", ["", "3,", "0,3", "-1", "nan", "inf", "many"])
def test_what_is_no_amount_is_refused(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedmrn-report", str(tmp_path), f"--within={said}"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"--within: {said}: must be megabytes, such as 3,10,30\n")
