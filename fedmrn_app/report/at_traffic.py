"""What so much traffic buys: a table of metrics with a column for each amount."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmrn_app.report.extra_tables import markdown_rows
from fedmrn_app.report.groups import Group, percent

_WAYS = {"up": ("uplink",), "both ways": ("uplink", "downlink")}


def within(groups: Sequence[Group], megabytes: Sequence[float], last: int) -> list[str]:
    """Lines of a table: the headline metric in percent after the last round that fits into so much traffic.

    The traffic is that of all clients. The largest of the same data is marked in each column; in brackets stands what
    runs end with that do not use it up.

    Args:
        groups: of runs, a row each.
        megabytes: the amounts, each of the uplink and of both ways.
        last: rounds up to the one that fits over which the metric's mean is taken, or as many as there are.
    """
    columns = [(way, amount) for way in _WAYS for amount in megabytes]
    head = ["run", "data", "seeds", *(f"{amount:g} MB {way}" for way, amount in columns)]
    rows = [[group.name, group.data, str(len(group.runs))] for group in groups]
    for way, amount in columns:
        found = [_reached(group, _WAYS[way], amount, last) for group in groups]
        for row, group, (mean, text) in zip(rows, groups, found, strict=True):
            rivals = (other for rival, (other, _) in zip(groups, found, strict=True) if rival.data == group.data)
            row.append(f"**{text}**" if text and mean == max(rivals) else text)
    return markdown_rows(head, rows)


def _reached(group: Group, ways: Sequence[str], amount: float, last: int) -> tuple[float, str]:
    """The mean over the seeds, and how it is shown; nothing where not even the first round of all seeds fits."""
    traffic = group.traffic(ways)
    fitting = (traffic <= amount).sum(1)
    if not fitting.all():
        return -np.inf, ""
    values = np.take_along_axis(group.trailing(group.metric, last), fitting[:, None] - 1, 1)[:, 0]
    ended = bool((fitting == traffic.shape[1]).any())
    return float(values.mean()), f"({percent(values)})" if ended else percent(values)
