"""`fedmrn-report --across`: what stands in it of runs whose figures are known."""

import sys
from pathlib import Path
from typing import Any

import pytest

from fedmrn_app.errors import RunError
from fedmrn_app.report.cli import main
from fedmrn_app.report.groups import read_groups
from fedmrn_app.report.paper_table import across
from tests.run_folder import make_run

HEAD = (
    "| run | seeds | rounds | fashion_mnist, iid: best, % (paper) | fashion_mnist, iid: final, % "
    "| fashion_mnist, label_shard: best, % (paper) | fashion_mnist, label_shard: final, % "
    "| bits per parameter, up | down |"
)


def run_on(path: Path, partition: str, strategy: str, seed: int, last: float, rounds: int = 2, **settings: Any) -> Path:
    """A finished run on Fashion-MNIST, whose accuracy was 0.5 in each round but the last."""
    summary = make_run(path, strategy, seed, (*([0.5] * (rounds - 1)), last), **settings)
    facts = summary.read_text().replace("shakespeare", "fashion_mnist").replace("natural", partition)
    summary.write_text(facts)
    return summary


def test_a_row_for_each_method_and_columns_for_its_data_in_the_papers_order(tmp_path: Path) -> None:
    runs = [
        run_on(tmp_path / "0", "label_shard", "fedavg", 0, 0.75),
        run_on(tmp_path / "1", "iid", "fedavg", 0, 0.75, rounds=100),
        run_on(tmp_path / "2", "iid", "eden", 0, 0.25),
        run_on(tmp_path / "3", "iid", "eden", 1, 0.75),
    ]
    head, _, plain, eden = across(read_groups(runs), last=1)
    assert head == HEAD
    assert plain == "| fedavg | 1 | 2-100 | 75.00 (92.0) | 75.00 | 75.00 | 75.00 | 1.250 | 5.000 |"
    assert eden == "| eden | 2 | 2 | 62.50 ± 17.68 | 50.00 ± 35.36 |  |  | 1.250 | 5.000 |"
    assert across(read_groups(runs), last=2)[3].split(" | ")[4] == "50.00 ± 17.68"
    with pytest.raises(RunError, match=r"--last 3: .* has 2 rounds"):
        across(read_groups(runs), last=3)


def test_settings_tried_on_the_same_data_have_rows_of_their_own(tmp_path: Path) -> None:
    several = {"a": 1, "b": 1, "c": 1, "d": 1}
    runs = [
        run_on(tmp_path / "0", "iid", "eden", 0, 0.1, bits=1, scale=2),
        run_on(tmp_path / "1", "iid", "eden", 0, 0.2, bits=2, scale=2),
        run_on(tmp_path / "2", "label_shard", "eden", 0, 0.3, bits=2, scale=4),
        run_on(tmp_path / "3", "iid", "drive", 0, 0.4, **several, e=1),
        run_on(tmp_path / "4", "iid", "drive", 0, 0.6, **dict.fromkeys(several, 2), e=1),
        run_on(tmp_path / "5", "iid", "drive", 0, 0.8, **dict.fromkeys(several, 2), e=2),
    ]
    groups = read_groups(runs)
    assert [group.name for group in groups[:3]] == ["eden strategy.bits=1", "eden", "eden"]
    _, _, *rows = across(groups, last=1)
    cells = [[row.strip("| ").split(" | ")[n] for n in (0, 4, 6)] for row in rows]
    assert cells == [
        ["eden strategy.bits=1", "10.00", ""],
        ["eden", "20.00", "30.00"],
        ["drive strategy.a=1 strategy.b=1 strategy.c=1 strategy.d=1", "40.00", ""],
        ["drive", "60.00", ""],
        ["drive strategy.e=2", "80.00", ""],
    ]


def test_runs_of_other_lengths_are_told_apart_by_their_settings(tmp_path: Path) -> None:
    runs = [
        run_on(tmp_path / "0", "iid", "eden", 0, 0.1, bits=1),
        run_on(tmp_path / "1", "iid", "eden", 0, 0.2, rounds=3, bits=2),
        run_on(tmp_path / "2", "iid", "drive", 0, 0.1),
        run_on(tmp_path / "3", "iid", "drive", 0, 0.1, rounds=3),
    ]
    names = [group.name for group in read_groups(runs)]
    assert names == ["eden strategy.bits=1", "eden strategy.bits=2", "drive", "drive"]


def test_command_prints_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_on(tmp_path / "0", "iid", "eden", 0, 0.25)
    monkeypatch.setattr(sys, "argv", ["fedmrn-report", str(tmp_path), "--across", "--last", "2"])
    assert main() == 0
    assert "| fashion_mnist, iid: last 2 rounds, % |" in capsys.readouterr().out.splitlines()[0]
