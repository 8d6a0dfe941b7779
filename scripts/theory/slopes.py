"""Exponents by which a quantity falls with the length of a run, as the theorems state them, and a table of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from rich.table import Table


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the exponent of the power law that fits best."""
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
    """Return a row per kind: the values at each x, the slope, and the expected slope.

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
