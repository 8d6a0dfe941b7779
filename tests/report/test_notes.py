"""The lines below a table: bits of the dense part, intervals, and remarks that were kept with runs."""

from pathlib import Path

import pytest

from fedmrn_app.report.archive import keep_runs
from fedmrn_app.report.comparison import against
from fedmrn_app.report.groups import Groups
from fedmrn_app.report.notes import notes
from fedmrn_app.report.runs import load_runs
from fedmrn_app.report.tables import across, choose, each_run, means, within
from tests.report.test_tables import read_groups
from tests.run_folder import make_run

INTERVAL = "± is half of the 95% confidence interval of the mean over seeds, by Student's t distribution."


def grouped(folder: Path, *runs: tuple[str, int, int | None]) -> Groups:
    """Group runs given by strategy, seed and bits of the dense part."""
    summaries = []
    for number, (strategy, seed, bits) in enumerate(runs):
        top = {} if bits is None else {"uplink": {"dense_bits": bits}}
        summaries.append(make_run(folder / str(number), strategy, seed, (0.5, 0.6 + seed / 10), top=top))
    return read_groups(summaries)


def below(groups: Groups, *, last: int = 1) -> list[str]:
    return [line for line in notes(means(groups, last), groups) if line]


@pytest.mark.slow
def test_bits_say_how_the_dense_part_was_sent(tmp_path: Path) -> None:
    part = "In replies the dense part (biases, batch norm)"
    six = f"{part} has 6 bits per value"
    cases: list[tuple[list[tuple[str, int, int | None]], str]] = [
        ([("eden", 0, 6), ("drive", 0, 6)], f"{six}."),
        ([("eden", 0, 32)], f"{part} is float32."),
        ([("fedavg", 0, 32), ("eden", 0, 6), ("drive", 0, 6)], f"{six}; that of fedavg is float32."),
        ([("eden", 0, None), ("drive", 0, 6)], f"{six}."),
    ]
    for number, (runs, line) in enumerate(cases):
        groups = grouped(tmp_path / str(number), *runs)
        assert below(groups) == [line]
        for table in (across(groups, 1), within(groups, [1], 1), against(groups, f"strategy={runs[0][0]}", 1)):
            assert line in notes(table, groups)
        assert line not in notes(choose(groups, "rounds", 1), groups)
        assert each_run(groups.runs)[-1] == line
    groups = grouped(tmp_path / "eden", ("eden", 0, 6), ("eden", 0, 8), ("eden", 1, 6))
    assert f"{part} has 6 bits per value; that of eden uplink.dense_bits=8 has 8 bits per value." in below(groups)
    assert below(grouped(tmp_path / "old", ("eden", 0, None))) == []


def test_intervals_are_explained_where_there_are_any(tmp_path: Path) -> None:
    assert below(grouped(tmp_path / "one", ("eden", 0, None))) == []
    assert below(grouped(tmp_path / "two", ("eden", 0, None), ("eden", 1, None))) == [INTERVAL]


def test_remarks_mark_their_rows_and_stay_with_kept_runs(tmp_path: Path) -> None:
    groups = grouped(tmp_path / "runs", ("fedavg", 0, None), ("eden", 0, None), ("eden", 1, None))
    (tmp_path / "runs" / "2" / "remark.txt").write_text("made with another\nestimator\n")
    keep_runs(groups.runs.index, tmp_path / "kept")
    for found in (load_runs(tmp_path / "runs"), load_runs(tmp_path / "kept")):
        groups = Groups.of(found)
        assert means(groups)["run"].tolist() == across(groups, 1)["run"].tolist() == ["fedavg", "eden †"]
        assert against(groups, "strategy=fedavg", 1)["run"].tolist() == ["eden †"]
        assert choose(groups, "rounds", 1)["run"].tolist() == ["fedavg", "eden †"]
        assert below(groups)[-1] == "† eden: made with another estimator"
        lines = each_run(found)
        assert lines[-1] == "† eden: made with another estimator"
        assert [line.startswith("| eden † |") for line in lines[2:5]] == [False, False, True]
    assert groups.table["run"][1] == "eden"  # in figures


def test_marks_are_those_of_the_rows(tmp_path: Path) -> None:
    groups = grouped(tmp_path, ("fedavg", 0, None), ("eden", 0, None))
    (tmp_path / "0" / "remark.txt").write_text("old")
    groups = Groups.of(load_runs(tmp_path))
    assert against(groups, "strategy=fedavg", 1)["against"].tolist() == ["fedavg †"]
    assert below(groups) == ["† fedavg: old"]
