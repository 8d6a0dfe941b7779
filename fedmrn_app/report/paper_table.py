"""Methods over data, as papers' tables have it: a row for each method, columns for each data set and partition."""

from __future__ import annotations

from collections.abc import Sequence

from fedmrn_app.report.extra_tables import markdown_rows
from fedmrn_app.report.groups import Group, percent, span
from fedmrn_app.report.published import PARTITIONS


def across(groups: Sequence[Group], last: int) -> list[str]:
    """Lines of a table: best headline metric in percent, the paper's in brackets, and the mean of the last rounds.

    A strategy has a row for each of its settings that were tried on the same data; what differs with the data alone,
    such as model and rounds, does not tell rows apart. Bits per parameter are a span where they differ with the data.

    Args:
        groups: of runs.
        last: rounds at the end over which the metric's mean is taken.

    Raises:
        RunError: a run has fewer rounds.
    """
    data = _in_order(groups)
    ending = "final, %" if last == 1 else f"last {last} rounds, %"
    head = ["run", "seeds", "rounds", *(f"{name}: {what}" for name in data for what in ("best, % (paper)", ending))]
    rows = [_cells(row, data, last) for row in _rows(groups)]
    return markdown_rows([*head, "bits per parameter, up", "down"], rows)


def _rows(groups: Sequence[Group]) -> list[dict[str, Group]]:
    """The groups of each row by their data; what is there twice, with fewer rounds, has a row of its own."""
    rows: list[dict[str, Group]] = []
    for group in groups:
        alike = (row for row in rows if group.data not in row and _same(group, next(iter(row.values()))))
        row = next(alike, None)
        if row is None:
            rows.append(row := {})
        row[group.data] = group
    return rows


def _same(one: Group, other: Group) -> bool:
    return (one.strategy, one.told) == (other.strategy, other.told)


def _cells(row: dict[str, Group], data: Sequence[str], last: int) -> list[str]:
    groups = list(row.values())
    cells = [groups[0].name, span([len(group.runs) for group in groups]), span([group.rounds for group in groups])]
    for name in data:
        group = row.get(name)
        cells += ["", ""] if group is None else [_best(group), percent(group.late(last))]
    for way in ("up", "down"):
        cells.append(span([group.values(f"{way}link_bits_per_parameter").mean() for group in groups], ".3f"))
    return cells


def _best(group: Group) -> str:
    best = percent(group.values(f"best_{group.metric}"))
    return best if group.published is None else f"{best} ({group.published:.1f})"


def _in_order(groups: Sequence[Group]) -> list[str]:
    """The data of the groups: data sets as they come, their partitions in the paper's order."""
    datasets = list(dict.fromkeys(group.dataset for group in groups))

    def place(group: Group) -> tuple[int, int]:
        partition = PARTITIONS.index(group.partition) if group.partition in PARTITIONS else len(PARTITIONS)
        return datasets.index(group.dataset), partition

    return list(dict.fromkeys(group.data for group in sorted(groups, key=place)))
