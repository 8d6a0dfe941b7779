"""Tables of runs that were evaluated in some of their rounds only, `evaluation.every`."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedmrn_app.errors import RunError
from fedmrn_app.report.comparison import against, difference
from fedmrn_app.report.groups import Groups
from fedmrn_app.report.runs import load_runs
from fedmrn_app.report.tables import choose, means, within
from fedmrn_app.report.verdicts import UNDECIDED, verdicts
from tests.report.test_tables import read_groups, rows
from tests.run_folder import make_run

NONE = math.nan
SOME = (NONE, 0.2, NONE, 0.6, NONE, 0.8)
EVERY = {"evaluation": {"every": 2}}


def groups_of(path: Path) -> Groups:
    return read_groups(
        [
            *(make_run(path / f"0{seed}", "fedavg", seed, SOME, top=EVERY) for seed in range(2)),
            *(
                make_run(path / f"1{seed}", "eden", seed, [value - 0.1 for value in SOME], top=EVERY)
                for seed in range(2)
            ),
        ]
    )


def test_means_are_those_of_the_evaluated_rounds(tmp_path: Path) -> None:
    groups = groups_of(tmp_path)
    assert groups.final(2).tolist() == pytest.approx([0.8, 0.8, 0.7, 0.7])
    assert groups.final(4).tolist() == pytest.approx([0.7, 0.7, 0.6, 0.6])
    assert "nan" not in str(rows(means(groups, 3)))
    assert "nan" not in str(rows(within(groups, [1000.0], 2)))
    assert rows(against(groups, "strategy=fedavg", 3), 5, 6) == [["-10.00 [-10.00, -10.00]", "lower"]]


def test_a_window_without_an_evaluation_is_refused(tmp_path: Path) -> None:
    groups = read_groups([make_run(tmp_path / "0", "fedavg", 0, [*SOME, NONE], top=EVERY)])
    tables: list[Callable[[], object]] = [
        lambda: means(groups, 1),
        lambda: against(groups, "strategy=fedavg", 1),
        lambda: choose(groups, "local.lr", 1),
    ]
    for table in tables:
        with pytest.raises(RunError, match=r"--last 1: .* evaluated none of these rounds \(evaluation.every=2\)"):
            table()


def test_first_rounds_end_with_an_evaluated_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "0", "fedavg", 0, SOME, top=EVERY).parent
    assert load_runs(run, rounds=4).iloc[0]["final"] == 0.6
    with pytest.raises(RunError, match=r"--rounds 3: .* was not evaluated in this round \(evaluation.every=2\)"):
        load_runs(run, rounds=3)


def test_what_is_not_a_number_has_no_verdict(tmp_path: Path) -> None:
    for values in (np.full(3, np.nan), np.array([0.1, np.nan]), np.array([np.inf, 0.1])):
        assert verdicts([values, np.array([0.1, 0.1])], 0.5, 0.05)[0] == UNDECIDED
        assert difference(values) == ("", "not finite")
    groups = read_groups(
        [
            make_run(tmp_path / str(lr), "fedavg", 0, (0.1, value), top={"local": {"lr": lr}})
            for lr, value in ((0.1, NONE), (0.2, 0.5), (0.3, NONE))
        ]
    )
    table = choose(groups, "local.lr", 1)
    assert isinstance(table, pd.DataFrame)
    assert table["local.lr"].tolist() == ["0.2"]
