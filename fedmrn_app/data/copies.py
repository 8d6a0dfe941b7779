"""Columns of a table that hold the label a second time, such as its name beside its number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.columns import Table, read_column, value_numbers
from fedmrn_app.data.features import numbers_of
from fedmrn_app.data.labels import Labels, listed
from fedmrn_app.data.rows import ColumnKind, RowQuery, way_to_ignore, way_to_keep

MIN_ROWS = 30  # in fewer rows a column may go with the classes by chance
MIN_NUMBERS = 10  # in fewer rows a number may go with a quantity by chance
ROWS_PER_VALUE = 5  # of a code that is finer than the classes
MAX_ODD = 0.01  # rows of each class that may have another value, as typing errors and gaps do
ALIKE = 1 - 1e-6  # correlation from which numbers are the quantity again, scaled or rounded
_FIRST = 1000  # rows in which most columns show that they have too many values


def refuse_copies(table: Table, features: Sequence[tuple[str, ColumnKind]], labels: Labels, query: RowQuery) -> None:
    """Refuse inputs that tell the label by themselves: a name or a finer code of the class, or the quantity again.

    A model that reads such a column learns nothing else. Columns that `dataset.kinds` names are not looked at.

    Args:
        table: the rows.
        features: the columns that are inputs, with what they hold.
        labels: the labels of the rows.
        query: what the configuration names.

    Raises:
        DataError: there is one.
    """
    looked_at = [each for each in features if each[0] not in (query.kinds or {}) and each[1] != "vector"]
    find = _copies if labels.values is None else _quantities
    found = list(find(table, looked_at, labels, query))
    if found:
        names = [name for name, _, _ in found]
        keep = way_to_keep({name: kind for name, kind, _ in found})
        what = f"column{'s' * (len(found) > 1)} {listed(names)} would tell the label: {found[0][2]}"
        keeps = f"{keep} makes an input of what is not a copy"
        raise query.place.error("ambiguous", f"{what}; {way_to_ignore(names)}; {keeps}")


Copy = tuple[str, ColumnKind, str]  # the name, what it holds, and why it is a copy


def _quantities(
    table: Table, features: Sequence[tuple[str, ColumnKind]], labels: Labels, query: RowQuery
) -> Iterator[Copy]:
    """Yield the numbers that are the quantity again, by a straight line."""
    if labels.values is None or len(labels) < MIN_NUMBERS:
        return
    numbers = [name for name, kind in features if kind == "number"]
    with query.place.reading():
        first = table.head(_FIRST, columns=numbers)
    for name in numbers:
        part = numbers_of(first.column(name), query.place)
        if not _on_a_line(part, labels.values[: len(part)], 0.9):  # sorted rows are close, and rounded more coarsely
            continue
        if _on_a_line(numbers_of(read_column(table, name, query.place), query.place), labels.values):
            yield name, "number", "it follows from the label by a factor and a sum"


def _on_a_line(one: NDArray[np.float64], other: NDArray[np.float64], least: float = ALIKE) -> bool:
    """Return whether the correlation of values (n,) is above `least`, in size.

    Values that are all alike have no correlation. They count as above a `least` that is below `ALIKE`, because the rows
    that follow may differ.
    """
    known = np.isfinite(one)
    one, other = one[known], other[known]
    if len(one) < MIN_NUMBERS:
        return False
    with np.errstate(all="ignore"):
        one, other = one - one.mean(), other - other.mean()
        size = np.linalg.norm(one) * np.linalg.norm(other)
        return bool(abs(one @ other) > least * size) if size else least < ALIKE


def _copies(
    table: Table, features: Sequence[tuple[str, ColumnKind]], labels: Labels, query: RowQuery
) -> Iterator[Copy]:
    """Yield the columns of few values each of which stands for a class."""
    classes, index = np.unique(labels.index, return_inverse=True)
    if len(labels) < MIN_ROWS or len(classes) < 2:
        return
    with query.place.reading():
        first = table.head(_FIRST, columns=[name for name, _ in features])
    for name, kind in features:
        if kind != "category" and len(first.column(name).unique()) > len(classes) + MAX_ODD * _FIRST:
            continue
        if why := _tells(value_numbers(read_column(table, name, query.place)), index, len(classes), kind):
            yield name, kind, why


def _tells(codes: NDArray[np.int64], index: NDArray[np.int64], classes: int, kind: ColumnKind) -> str:
    """Return why values by number (n,), -1 for none, tell the classes `index` (n,); empty where they do not."""
    codes = codes + 1
    values = int(codes.max()) + 1
    if values * ROWS_PER_VALUE > max(len(codes), ROWS_PER_VALUE * (classes + 2)):
        return ""
    counts = np.bincount(codes * classes + index, minlength=values * classes).reshape(values, classes)
    filled, rows = counts[1:], counts.sum(0)
    seen = rows > 0
    best = filled[:, seen].argmax(0) if len(filled) else np.empty(0, np.int64)
    if len(best) >= 2 and len(np.unique(best)) == len(best):
        agree, sizes = filled[best, np.flatnonzero(seen)], filled.sum(1)[best]
        if np.all(rows[seen] - agree <= MAX_ODD * rows[seen]) and np.all(sizes - agree <= MAX_ODD * sizes):
            return "each class has one value"
    finer = kind == "category" and len(filled) > len(best) >= 2 and not counts[0].any()
    if finer and np.all((filled > 0).sum(1) == 1) and len(filled) * ROWS_PER_VALUE <= len(codes):
        return "each value has one class"
    return ""
