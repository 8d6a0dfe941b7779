"""Tables of the first rounds of longer runs, as `fedmrn-report --rounds` prints them."""

import json
import math
from pathlib import Path

import pytest

from fedmrn_app.errors import RunError
from fedmrn_app.report.comparison import against
from fedmrn_app.report.runs import find_summaries, load_rounds, load_runs
from fedmrn_app.report.tables import each_run, means
from tests.paths import ROOT
from tests.report.test_tables import read_groups, rows
from tests.run_folder import make_run

ACCURACIES = (0.2, 0.7, 0.4, 0.9)
LONG_RUNS = find_summaries([ROOT / "results" / "fashion_mnist" / "table1"])


def test_first_rounds_are_those_of_a_run_that_ended_there(tmp_path: Path) -> None:
    long = [make_run(tmp_path / "long", "eden", 0, ACCURACIES)]
    short = [make_run(tmp_path / "short", "eden", 0, ACCURACIES[:3])]
    assert rows(means(read_groups(long, 3), 2)) == rows(means(read_groups(short), 2))
    assert each_run(load_runs(tmp_path / "long", rounds=3)) == each_run(load_runs(tmp_path / "short"))
    assert rows(means(read_groups(long), 2)) != rows(means(read_groups(short), 2))


def test_runs_of_different_lengths_are_one_group_and_can_be_compared(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "0", "eden", 0, ACCURACIES),
        make_run(tmp_path / "1", "eden", 1, ACCURACIES[:2]),
        make_run(tmp_path / "2", "fedavg", 0, ACCURACIES[:3]),
    ]
    assert list(read_groups(runs).runs["group"]) == [0, 1, 2]
    groups = read_groups(runs, 2)
    assert groups.runs[["group", "seed", "rounds"]].to_numpy().tolist() == [[0, 0, 2], [0, 1, 2], [1, 0, 2]]
    assert rows(against(groups, "strategy=fedavg", 1), 5) == [["+0.00"]]


@pytest.mark.parametrize("path", LONG_RUNS, ids=lambda path: path.parent.name)
def test_all_rounds_of_a_kept_run_give_its_own_summary(path: Path) -> None:
    summary, rounds = json.loads(path.read_text()), load_rounds(load_runs(path.parent))
    again = load_runs(path.parent, rounds=len(rounds)).iloc[0]
    assert list(load_runs(path.parent).columns) == list(again.index)
    for key, value in summary.items():
        if isinstance(value, float) and not math.isnan(value):
            assert again[key] == pytest.approx(value, rel=1e-12), key
    begun = load_runs(path.parent, rounds=60).iloc[0]
    assert begun["best_accuracy"] == begun["best"] == rounds["accuracy"][:60].max()
    assert begun["uplink_bits_per_parameter"] == pytest.approx(rounds["uplink_bits_per_parameter"][:60].mean())


def test_runs_that_would_have_been_others_are_refused(tmp_path: Path) -> None:
    ending = make_run(tmp_path / "0", "fedrolex", 0, ACCURACIES, output_lr=0.5)
    private = make_run(tmp_path / "1", "fedavg", 0, ACCURACIES, top={"privacy": {"epsilon": 8.0}})
    for path, rounds, text in (
        (ending, 5, "has 4 rounds"),
        (ending, 3, "has strategy.output_lr=0.5, which depends on the number of rounds"),
        (private, 3, "has privacy.epsilon=8.0, which depends on the number of rounds"),
    ):
        with pytest.raises(RunError, match=f"^--rounds {rounds}: {path.parent} {text}") as refused:
            read_groups([path], rounds)
        assert (refused.value.key, refused.value.value) == ("--rounds", rounds)
    assert read_groups([ending, private], 4).table["rounds"][0] == 4
