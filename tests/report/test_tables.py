"""The tables of `fedmrn-report`, of runs whose results are known."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedmrn_app.config.compose import compose_values
from fedmrn_app.errors import RunError
from fedmrn_app.report.groups import Groups
from fedmrn_app.report.runs import load_runs
from fedmrn_app.report.tables import across, choose, extra_tables, markdown, means, until, within
from tests.run_folder import make_run

# MB of a round of `row`, in which nine of ten clients reply, and five evaluate
ROUND_UP, ROUND_BOTH = (9 * 100 + 5 * 214) / 1e6, (9 * 100 + 10 * 400 + 5 * (214 + 50)) / 1e6
IID, SHARDS = ("fashion_mnist", "iid"), ("fashion_mnist", "label_shard")


def read_groups(runs: Sequence[Path], rounds: int | None = None) -> Groups:
    """Group runs that are given by their summaries; their folders decide the order."""
    return Groups.of(load_runs(*(run.parent for run in runs), rounds=rounds))


def rows(table: pd.DataFrame, *columns: int) -> list[list[str]]:
    """Return cells of a table as text, of all columns or of some."""
    return [[row[n] for n in columns or range(len(row))] for row in table.to_numpy().tolist()]


@pytest.fixture
def traffic_runs(tmp_path: Path) -> list[Path]:
    return [
        make_run(tmp_path / "0", "fedmrn", 0, (0.2, 0.4, 0.9, 0.7)),
        make_run(tmp_path / "1", "fedmrn", 1, (0.4, 0.4, 0.7, 0.7)),
        make_run(tmp_path / "2", "eden", 0, (0.25, 0.5)),
    ]


def test_within_takes_the_last_round_that_fits_and_marks_the_best(traffic_runs: list[Path]) -> None:
    lines = markdown(within(read_groups(traffic_runs), [ROUND_UP, 3.1 * ROUND_UP], last=1))
    assert (
        lines[0]
        == "| run | data | seeds | 0.00197 MB up | 0.006107 MB up | 0.00197 MB both ways | 0.006107 MB both ways |"
    )
    assert lines[2].startswith("| fedmrn | shakespeare, natural | 2 | **30.00 ± 127.06** | **80.00 ± 127.06** |")
    assert lines[3] == "| eden | shakespeare, natural | 1 | 25.00 | (50.00) |  |  |"
    fedmrn, eden = rows(within(read_groups(traffic_runs), [1.01 * ROUND_BOTH, 2.01 * ROUND_BOTH], last=1), 5, 6)
    assert (fedmrn, eden) == (["**30.00 ± 127.06**", "40.00 ± 0.00"], ["25.00", "**(50.00)**"])  # failed clients count
    fedmrn, _ = rows(within(read_groups(traffic_runs), [3.5 * ROUND_UP, 9], last=2), 3, 4)
    assert fedmrn[0].strip("*") == "60.00 ± 63.53"  # of (0.4 + 0.9) / 2 and (0.4 + 0.7) / 2
    assert fedmrn[1].strip("*") == "(75.00 ± 63.53)"
    trailing = read_groups(traffic_runs[:1]).trailing("accuracy", 3)
    assert trailing.to_numpy() == pytest.approx(np.array([0.2, 0.3, 0.5, 2 / 3]))
    traffic_runs[2].write_text(traffic_runs[2].read_text().replace("natural", "iid"))  # other data, another best
    both = rows(within(read_groups(traffic_runs), [9], last=1), 3)
    assert both == [["**(70.00 ± 0.00)**"], ["**(50.00)**"]]


def test_tables_follow_a_metric_of_which_less_is_better(traffic_runs: list[Path]) -> None:
    for path in traffic_runs:
        path.write_text(path.read_text().replace('"less_is_better": false', '"less_is_better": true'))
    groups = read_groups(traffic_runs)
    assert rows(within(groups, [ROUND_UP], last=1), 3) == [["0.30 ± 1.27"], ["**0.25**"]]
    assert "best accuracy" in means(groups)
    assert rows(until(groups, 0.3), 2, 3) == [["1 of 2", "1"], ["1", "1"]]
    assert rows(choose(groups, "rounds", 1), -1) == [["4"], ["2"]]


def test_choose_has_a_row_for_other_settings_and_a_column_for_each_value(tmp_path: Path) -> None:
    curves = {0.1: (0.2, 1.0, 0.5), 10: (0.2, 0.5, 0.6), 2: (0.2, 0.5, 0.5)}
    runs = [make_run(tmp_path / str(bits), "eden", 0, curve, bits=bits) for bits, curve in curves.items()]
    runs.append(make_run(tmp_path / "again", "eden", 1, (0.2, 0.7, 0.9), bits=2))
    runs.append(make_run(tmp_path / "plain", "fedavg", 0, (0.1, 0.2, 0.3)))
    groups = read_groups(runs)
    head, _, eden, plain = markdown(choose(groups, "strategy.bits", last=1))
    assert head == "| run | data | seeds | rounds | 0.1 | 2 | 10 | null | strategy.bits |"
    assert eden == "| eden | shakespeare, natural | 1-2 | 3 | 50.00 | **70.00 ± 254.12** | 60.00 |  | 2 |"
    assert plain == "| fedavg | shakespeare, natural | 1 | 3 |  |  |  | **30.00** | null |"
    assert markdown(choose(groups, "strategy.bits", last=2))[2].endswith(
        "| **75.00** | 65.00 ± 190.59 | 55.00 |  | 0.1 |"
    )
    table = means(groups, last=2)
    assert rows(table, 4) == [["75.00"], ["65.00 ± 190.59"], ["55.00"], ["25.00"]]
    assert list(table.columns[4:6]) == ["accuracy of the last 2 rounds, %", "best accuracy, %"]
    with pytest.raises(RunError) as refused:
        choose(groups, "local.rate", 1)
    assert (refused.value.code, refused.value.key, refused.value.value) == ("unknown-key", "--choose", "local.rate")
    for table_of in (means, across):
        with pytest.raises(RunError) as refused:
            table_of(groups, 4)
        assert (refused.value.code, refused.value.key, refused.value.value) == ("too-few-rounds", "--last", 4)


def test_choose_separates_rows_by_other_settings(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [{"bits": bits, "scale": scale} for bits in (1, 2) for scale in ("a", "b")]
    runs = [make_run(tmp_path / str(n), "eden", 0, (0.1 * n,), **one) for n, one in enumerate(settings)]
    table = choose(read_groups(runs), "strategy.bits", last=1)
    assert rows(table, 0, 4, 5, 6) == [
        ["eden strategy.scale=a", "0.00", "**20.00**", "2"],
        ["eden strategy.scale=b", "10.00", "**30.00**", "2"],
    ]


@pytest.mark.parametrize("memories", [(True,), (True, False)])
def test_choose_compares_forms_on_a_lattice_with_others(memories: tuple[bool, ...], tmp_path: Path) -> None:
    """Those alone have a memory, which two values of it set apart."""
    forms: list[dict[str, Any]] = [{"dtype": "quantized", "memory": memory} for memory in memories]
    forms.append({"dtype": "float16", "memory": True})
    runs = [
        make_run(tmp_path / str(n), "eden", 0, (0.5 + 0.1 * n,), top={"downlink": one}) for n, one in enumerate(forms)
    ]
    table = choose(read_groups(runs), "downlink.dtype", last=1)
    if len(memories) == 1:
        assert rows(table, 4, 5, 6) == [["**60.00**", "50.00", "float16"]]
    else:
        assert len(table) == 3


@pytest.mark.slow
def test_across_has_a_row_for_each_method_and_data_in_the_papers_order(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "0", "fedavg", 0, (0.5, 0.75), SHARDS),
        make_run(tmp_path / "1", "fedavg", 0, (*[0.5] * 99, 0.75), IID, top=paper_setting("iid")),
        make_run(tmp_path / "2", "eden", 0, (0.5, 0.25), IID, top=paper_setting("iid")),
        make_run(tmp_path / "3", "eden", 1, (0.5, 0.75), IID, top=paper_setting("iid")),
    ]
    head, _, plain, eden = markdown(across(read_groups(runs), last=1))
    assert head == (
        "| run | seeds | rounds | fashion_mnist, iid: best, % (paper) | fashion_mnist, iid: final, % "
        "| fashion_mnist, label_shard: best, % (paper) | fashion_mnist, label_shard: final, % "
        "| bits per parameter, up | down |"
    )
    assert plain == "| fedavg | 1 | 2-100 | 75.00 (92.0) | 75.00 | 75.00 | 75.00 | 1.250 | 5.000 |"
    assert eden == "| eden | 2 | 2 | 62.50 ± 158.83 | 50.00 ± 317.66 |  |  | 1.250 | 5.000 |"
    table = across(read_groups(runs), last=2)
    assert (table.columns[4], table.iloc[1, 4]) == ("fashion_mnist, iid: last 2 rounds, %", "50.00 ± 158.83")


def test_across_has_a_row_for_each_setting_tried_on_the_same_data(tmp_path: Path) -> None:
    several: dict[str, Any] = {"a": 1, "b": 1, "c": 1, "d": 1}
    others: dict[str, Any] = dict.fromkeys(several, 2)
    runs = [
        make_run(tmp_path / "0", "eden", 0, (0.1,), IID, bits=1, scale=2),
        make_run(tmp_path / "1", "eden", 0, (0.2,), IID, bits=2, scale=2),
        make_run(tmp_path / "2", "eden", 0, (0.3,), SHARDS, bits=2, scale=4),
        make_run(tmp_path / "3", "drive", 0, (0.4,), IID, **several, e=1),
        make_run(tmp_path / "4", "drive", 0, (0.6,), IID, **others, e=1),
        make_run(tmp_path / "5", "drive", 0, (0.8,), IID, **others, e=2),
    ]
    assert rows(across(read_groups(runs), last=1), 0, 4, 6) == [
        ["eden strategy.bits=1", "10.00", ""],
        ["eden", "20.00", "30.00"],
        ["drive strategy.a=1 strategy.b=1 strategy.c=1 strategy.d=1", "40.00", ""],
        ["drive", "60.00", ""],
        ["drive strategy.e=2", "80.00", ""],
    ]


def paper_setting(partition: str) -> dict[str, Any]:
    """Return what runs of the paper's experiment on Fashion-MNIST have in common."""
    values = compose_values([f"experiment=fmnist_{partition}"])
    return {key: value for key, value in values.items() if key not in ("rounds", "seed", "strategy")}


@pytest.fixture
def long_runs(tmp_path: Path) -> list[Path]:
    """Return runs on two partitions, whose last round is repeated until they are as long as the paper's."""
    runs = [
        make_run(tmp_path / "a", "fedavg", 0, (0.9, 0.9), IID, top=paper_setting("iid")),
        make_run(tmp_path / "b", "fedavg", 0, (0.7, 0.6), SHARDS, top=paper_setting("label_shard")),
        make_run(tmp_path / "c", "eden", 0, (0.85, 0.8), IID, top=paper_setting("iid")),
        make_run(tmp_path / "d", "eden", 0, (0.55, 0.65), SHARDS, top=paper_setting("label_shard")),
        make_run(tmp_path / "e", "eden", 1, (0.55, 0.55), SHARDS, top=paper_setting("label_shard")),
    ]
    for run in runs:
        run.write_text(run.read_text().replace('"rounds": 2', '"rounds": 100'))
        head, first, last = (file := run.with_name("rounds.csv")).read_text().splitlines()
        rest = last.removeprefix("2")
        file.write_text("\n".join([head, first, *(f"{number}{rest}" for number in range(2, 101))]) + "\n")
    return runs


def test_extra_tables_compare_with_fedavg_and_give_gaps_and_times(long_runs: list[Path]) -> None:
    losses, gaps, times = extra_tables(read_groups(long_runs)).values()
    # best: 0.85 - 0.9 and 0.6 - 0.7; last: 0.8 - 0.9 and 0.6 - 0.6; the paper's: 91.4 - 92.0 and 88.3 - 88.8
    assert rows(losses) == [["eden", "fashion_mnist", "iid, label_shard", "-15.0", "-10.0", "-1.1"]]
    assert rows(gaps)[0] == ["fedavg", "fashion_mnist, iid", "+0.1000", "0.1000", "-1.000", "1.000"]
    assert rows(times)[0] == ["fedavg", "fashion_mnist, iid", "3.00", "2.000", "0.0200", "2.020", "1.0%", "0.4000",
                              "0.2000"]  # fmt: skip
    assert not any("FedAvg" in title for title in extra_tables(read_groups(long_runs[2:3])))


def test_until_gives_rounds_seconds_and_traffic_of_the_seeds_that_reach_a_value(long_runs: list[Path]) -> None:
    plain, plain_shards, eden, eden_shards = rows(until(read_groups(long_runs), 0.64))
    for one in (plain, plain_shards, eden):
        assert one[2:6] == ["1", "1", "3.0", "0.0"]
    assert eden_shards[2:6] == ["1 of 2", "2", "6.0", "3.0"]
    assert float(eden_shards[6]) == pytest.approx(2 * float(eden[6]))
    assert rows(until(read_groups(long_runs[:1]), 0.95), 2, 3) == [["0 of 1", ""]]
