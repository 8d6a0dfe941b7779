"""The names of groups in tables, and the line below a table."""

from pathlib import Path
from typing import Any

import pandas as pd

from fedmrn_app.report.groups import Groups
from fedmrn_app.report.notes import notes
from tests.report.test_tables import read_groups
from tests.run_folder import make_run


def group_runs(folder: Path, *runs: tuple[str, str, dict[str, Any]]) -> Groups:
    """Group runs given by strategy, partition and settings; those with a `strategy.` are the strategy's own."""
    summaries = []
    for number, (strategy, partition, settings) in enumerate(runs):
        own = {key.removeprefix("strategy."): value for key, value in settings.items() if "." in key}
        top = {key: value for key, value in settings.items() if "." not in key}
        data = ("shakespeare", partition)
        summaries.append(make_run(folder / str(number), strategy, 0, (0.5,), data, top=top, **own))
    return read_groups(summaries)


def footnote(groups: Groups, left_out: str | None = None) -> list[str]:
    return notes(pd.DataFrame({"run": ["a"]}), groups, left_out)


def names(groups: Groups) -> list[str]:
    return list(groups.table["run"])


def test_names_leave_out_the_values_of_more_than_half(tmp_path: Path) -> None:
    groups = group_runs(
        tmp_path,
        ("eden", "iid", {"alpha": 1, "bits": 3}),
        ("eden", "iid", {"alpha": 2, "bits": 3}),
        ("fedmrn", "iid", {"alpha": 1, "bits": 4}),
        ("fedmrn", "iid", {"alpha": 1, "bits": 3}),
        ("drive", "iid", {"alpha": 2, "bits": 3}),
        ("topk", "iid", {"alpha": 1, "bits": 3}),
    )
    assert names(groups) == ["eden", "eden alpha=2", "fedmrn bits=4", "fedmrn", "drive alpha=2", "topk"]
    assert footnote(groups) == ["", "Unless a name says otherwise: alpha=1, bits=3."]
    assert footnote(groups, "bits") == ["", "Unless a name says otherwise: alpha=1."]


def test_names_keep_the_values_of_exactly_half(tmp_path: Path) -> None:
    groups = group_runs(
        tmp_path, *[("eden", "iid", {"alpha": alpha}) for alpha in (1, 2)], ("drive", "iid", {"alpha": 3})
    )
    assert names(groups) == ["eden alpha=1", "eden alpha=2", "drive alpha=3"]
    assert footnote(groups) == []


def test_names_have_four_settings_at_most(tmp_path: Path) -> None:
    groups = group_runs(tmp_path, *[("drive", "iid", dict.fromkeys("abcde", value)) for value in (1, 2)])
    assert names(groups) == [f"drive a={n} b={n} c={n} d={n} ..." for n in (1, 2)]


def test_options_of_a_method_distinguish_only_its_own_runs(tmp_path: Path) -> None:
    groups = group_runs(
        tmp_path,
        *[("eden", "iid", {"strategy.bits": bits}) for bits in (1, 2)],
        *[("drive", "iid", {"strategy.bits": 3, "strategy.scale": scale}) for scale in (1, 2)],
    )
    assert names(groups) == [f"eden strategy.bits={n}" for n in (1, 2)] + [f"drive strategy.scale={n}" for n in (1, 2)]
    assert footnote(groups) == []


def test_names_leave_out_settings_that_change_with_the_data_alone(tmp_path: Path) -> None:
    groups = group_runs(
        tmp_path,
        *[("eden", "iid", {"rate": rate}) for rate in (1, 2)],
        *[("fedavg", data, {"rate": rate}) for rate, data in ((1, "iid"), (3, "label_shard"))],
        ("drive", "iid", {"rate": 1}),
    )
    assert names(groups) == ["eden rate=1", "eden rate=2", "fedavg", "fedavg", "drive rate=1"]
    assert footnote(groups) == []


def test_runs_of_different_lengths_are_named_by_their_settings(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "0", "eden", 0, (0.1,), bits=1),
        make_run(tmp_path / "1", "eden", 0, (0.2, 0.3), bits=2),
        make_run(tmp_path / "2", "drive", 0, (0.1,)),
        make_run(tmp_path / "3", "drive", 0, (0.1, 0.2)),
    ]
    assert names(read_groups(runs)) == ["eden strategy.bits=1", "eden strategy.bits=2", "drive", "drive"]
