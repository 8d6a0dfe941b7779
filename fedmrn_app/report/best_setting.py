"""Which value of a setting to take: a table with a row for each other setting, and a column for each value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fedmrn_app.errors import RunError
from fedmrn_app.report.extra_tables import markdown_rows
from fedmrn_app.report.groups import Group, percent, span
from fedmrn_app.report.run_names import short


def choose(groups: Sequence[Group], key: str, last: int) -> list[str]:
    """Lines of a table of headline metrics in percent, the largest of a row marked and its value named at the end.

    Args:
        groups: of runs that differ in the setting, and in others that give a row each.
        key: of the setting, dotted.
        last: rounds at the end over which the metric's mean is taken.

    Raises:
        RunError: no run has such a setting, or a run has fewer rounds.
    """
    if not any(key in group.runs[0].settings for group in groups):
        raise RunError(f"--choose {key}: no run's configuration has it")
    rows: dict[str, dict[str, Group]] = {}
    for group in groups:
        others = {name: value for name, value in group.runs[0].telling.items() if name != key}
        row = rows.setdefault(json.dumps([group.strategy, group.data, others], sort_keys=True, default=str), {})
        row[short(group.runs[0].settings.get(key))] = group
    values = sorted({value for row in rows.values() for value in row}, key=_order)
    head = ["run", "data", "seeds", "rounds", *values, key]
    return markdown_rows(head, [_cells(row, values, key, last) for row in rows.values()])


def _cells(row: dict[str, Group], values: Sequence[str], key: str, last: int) -> list[str]:
    first = next(iter(row.values()))
    best = max((value for value in values if value in row), key=lambda value: row[value].late(last).mean())
    cells = {value: percent(group.late(last)) for value, group in row.items()}
    cells[best] = f"**{cells[best]}**"
    return [
        first.name_without(key),
        first.data,
        span([len(group.runs) for group in row.values()]),
        span([group.rounds for group in row.values()]),
        *(cells.get(value, "") for value in values),
        best,
    ]


def _order(value: str) -> tuple[bool, Any]:
    """Numbers by their size, then words."""
    try:
        return False, float(value)
    except ValueError:
        return True, value
