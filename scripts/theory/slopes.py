"""How a quantity falls with the length of a run, of which the theorems speak: the exponent, and a table of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from rich.table import Table


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent of the power law that fits best."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def slope_table(
    what: str,
    x: Sequence[float],
    heads: Iterable[str],
    rows: Iterable[tuple[str, Sequence[float], str]],
    *,
    last: str = "theorem",
    form: str = ".3e",
) -> Table:
    """A row per kind: what was measured at each x, the slope, what is expected.

    Args:
        what: is measured.
        x: lengths.
        heads: a column's head for each.
        rows: a kind's name, its values (len(x),), and what is expected of the slope.
        last: head of the last column.
        form: of the values.
    """
    table = Table(what, *heads, "slope", last)
    for name, values, expected in rows:
        table.add_row(name, *(f"{value:{form}}" for value in values), f"{slope(x, values):.2f}", expected)
    return table
