"""Confidence intervals over seeds, paired differences and their verdicts, against SciPy's tests."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedmrn_app.errors import RunError
from fedmrn_app.report.comparison import against, difference
from fedmrn_app.report.groups import Groups, half_width
from tests.report.test_tables import read_groups, rows
from tests.run_folder import make_run

IID = {"partition": {"name": "iid"}}
SHARDS = ("fashion_mnist", "label_shard")


def groups_of(folder: Path, *runs: tuple[Any, ...], **settings: Any) -> Groups:
    """Group runs given by strategy, seed and accuracies, and data if they differ."""
    return read_groups([make_run(folder / str(n), *run, top=settings) for n, run in enumerate(runs)])


@pytest.mark.parametrize("values", [[0.1, 0.4], [0.86, 0.91, 0.88], list(np.linspace(0.2, 0.9, 12))])
def test_half_of_the_interval_is_that_of_students_t_distribution(values: list[float]) -> None:
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert half_width(np.array(values)) == pytest.approx((interval.high - interval.low) / 2)


@pytest.mark.parametrize(
    ("values", "text", "verdict"),
    [
        ([0.01, 0.012, 0.011], "+1.10 [+0.85, +1.35]", "higher"),
        ([-0.01, -0.012, -0.011], "-1.10 [-1.35, -0.85]", "lower"),
        ([0.01, 0.03, -0.01], "+1.00 [-3.97, +5.97]", "not distinguishable"),
        ([0.0, 0.0], "+0.00 [+0.00, +0.00]", "not distinguishable"),
        ([0.5], "+50.00", "one seed"),
        ([], "", "no common seed"),
    ],
)
def test_verdict_is_whether_the_interval_holds_zero(values: list[float], text: str, verdict: str) -> None:
    assert difference(np.array(values)) == (text, verdict)
    if len(set(values)) > 1:
        p = stats.ttest_1samp(values, 0).pvalue
        assert (p < 0.05) == (verdict != "not distinguishable")


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    groups = groups_of(
        tmp_path,
        ("fedavg", 0, (0.2, 0.6, 0.5)),
        ("fedavg", 1, (0.2, 0.4, 0.4)),
        ("fedavg", 2, (0.0, 0.0, 0.0)),
        ("eden", 1, (0.2, 0.7, 0.5)),
        ("eden", 0, (0.2, 0.7, 0.7)),
        ("eden", 3, (1.0, 1.0, 1.0)),  # without a pair
        ("drive", 5, (0.1, 0.2, 0.3)),
        ("topk", 0, (0.5, 0.7, 0.6)),
    )
    table = against(groups, "strategy=fedavg", last=2)
    assert list(table.columns[4:9]) == [
        "common seeds", "accuracy of the last 2 rounds, difference in points", "verdict",
        "best accuracy, difference in points", "verdict",
    ]  # fmt: skip
    # last two rounds: 0.7 - 0.55 and 0.6 - 0.4; best round: 0.7 - 0.6 and 0.7 - 0.4
    paired = [difference(np.array(values)) for values in ([0.15, 0.2], [0.1, 0.3])]
    assert rows(table, 0, 1, 4, 5, 6, 7, 8) == [
        ["eden", "fedavg", "2", *paired[0], *paired[1]],
        ["drive", "fedavg", "0", "", "no common seed", "", "no common seed"],
        ["topk", "fedavg", "1", "+10.00", "one seed", "+10.00", "one seed"],
    ]
    assert rows(table, 9, 10)[0] == ["1.250", "1.250"]


def test_runs_that_repeat_a_seed_count_as_one(tmp_path: Path) -> None:
    accuracies = [("fedavg", 0, (0.4,)), ("fedavg", 1, (0.5,))]
    accuracies += [("eden", 0, (0.5,)), ("eden", 0, (0.7,)), ("eden", 1, (0.9,))]
    groups = groups_of(tmp_path, *accuracies)
    assert rows(against(groups, "strategy=fedavg", 1), 4, 5) == [["2", difference(np.array([0.2, 0.4]))[0]]]
    assert groups.by_seed(groups.final(1))[1].tolist() == pytest.approx([0.6, 0.9])
    assert groups.spread(groups.final(1))[1] == f"0.75 ± {half_width(np.array([0.6, 0.9])):.2f}"


def test_only_runs_on_the_same_data_with_as_many_rounds_are_compared(tmp_path: Path) -> None:
    groups = groups_of(
        tmp_path,
        ("fedavg", 0, (0.5, 0.6)),
        ("eden", 0, (0.5, 0.7), SHARDS),
        ("topk", 0, (0.5, 0.7, 0.8)),
        ("drive", 0, (0.5, 0.7)),
    )
    table = against(groups, "strategy=fedavg", last=1)
    assert rows(table, 0, 1, 6) == [
        ["eden", "", "no such run"],
        ["topk", "", "differs in rounds"],
        ["drive", "fedavg", "one seed"],
    ]


def test_the_other_run_is_chosen_by_its_settings(tmp_path: Path) -> None:
    summaries = [
        make_run(tmp_path / str(number), "fedavg", 0, (0.5,), top={"server_lr": rate, **IID})
        for number, rate in enumerate((1.0, 0.64))
    ]
    groups = read_groups([*summaries, make_run(tmp_path / "eden", "eden", 0, (0.6,), top=IID, bits=2)])
    for chosen in ("strategy=fedavg server_lr=1", "strategy=fedavg partition=iid server_lr=1.0"):
        assert against(groups, chosen, 1)["against"].tolist() == [groups.table["run"][0]] * 2
    assert against(groups, "strategy.bits=2", 1)["against"].tolist() == ["eden"] * 2
    for chosen, code in (
        ("strategy=fedavg", "ambiguous"),
        ("strategy=fedmrn", "no-run"),
        ("strategy=fedavg server_lr=null", "no-run"),
        ("fedavg", "no-setting"),
        ("", "no-setting"),
    ):
        with pytest.raises(RunError) as refused:
            against(groups, chosen, 1)
        assert (refused.value.code, refused.value.key, refused.value.value) == (code, "--against", chosen)


def test_of_several_runs_of_a_strategy_the_one_that_differs_in_the_settings_only_is_chosen(tmp_path: Path) -> None:
    groups = read_groups(
        [
            make_run(tmp_path / f"{bits}_{rate}", "eden", 0, (accuracy,), bits=bits, top={"server_lr": rate})
            for bits, rate, accuracy in ((1, 1.0, 0.5), (1, 0.5, 0.6), (2, 1.0, 0.7), (2, 0.5, 0.9), (3, 0.5, 0.8))
        ]
    )
    assert rows(against(groups, "server_lr=1.0", last=1), 1, 5) == [
        ["eden strategy.bits=1 server_lr=1.0", "+10.00"],
        ["eden strategy.bits=2 server_lr=1.0", "+20.00"],
        ["", ""],
    ]


def test_settings_of_several_strategies_compare_each_with_itself(tmp_path: Path) -> None:
    accuracies = {("eden", 0.03): 0.5, ("eden", 0.1): 0.6, ("topk", 0.03): 0.4, ("topk", 0.1): 0.3, ("drive", 0.1): 0.2}
    groups = read_groups(
        [
            make_run(tmp_path / str(number), name, 0, (accuracy,), top={"server_lr": rate})
            for number, ((name, rate), accuracy) in enumerate(accuracies.items())
        ]
    )
    assert rows(against(groups, "server_lr=0.03", last=1), 0, 1, 5) == [
        ["eden", "eden server_lr=0.03", "+10.00"],
        ["topk", "topk server_lr=0.03", "-10.00"],
        ["drive", "", ""],
    ]
