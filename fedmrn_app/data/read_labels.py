"""Labels as they are stored, numbers or names -> class numbers from 0 as the run counts its classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import DataError

MOST_LISTED = 12  # words in one line


@dataclass(frozen=True)
class Labels:
    """The labels of some rows.

    Attributes:
        index: int64 (n,), from 0.
        names: what the indices stand for, in their order; None where the labels are plain numbers.
        declared: whether the data fix the order of the names (a ClassLabel), so that the indices can do without them.
    """

    index: NDArray[np.int64]
    names: tuple[str, ...] | None = None
    declared: bool = False

    def __len__(self) -> int:
        return len(self.index)


def encode_labels(values: NDArray[Any], said: str) -> Labels:
    """Labels from whole numbers, from true and false, or from texts, whose order is that of the alphabet.

    Args:
        values: (n,) or (n, 1).
        said: how errors begin.

    Raises:
        DataError: another shape or type, a label below 0, or no rows.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise DataError(f"{said}: labels have the shape {values.shape}; they must be one number or text for each row")
    if not len(values):
        raise DataError(f"{said}: has no rows")
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind == "U":
        names, index = np.unique(values, return_inverse=True)
        return Labels(index.astype(np.int64), tuple(map(str, names)))
    if values.dtype.kind not in "biu":
        raise DataError(f"{said}: labels are {values.dtype}; they must be whole numbers or text")
    return number_labels(values.astype(np.int64), said)


def number_labels(index: NDArray[np.int64], said: str, names: tuple[str, ...] | None = None) -> Labels:
    """Labels that are indices already, of declared names where there are any.

    Raises:
        DataError: an index below 0, as hubs give rows without a label, or without a name.
    """
    top = len(names) if names is not None else 1 << 31
    for row in np.flatnonzero((index < 0) | (index >= top))[:1]:
        raise DataError(f"{said}: row {row} has the label {index[row]}; labels count from 0")
    return Labels(index, names, names is not None)


def count_classes(labels: Labels, said: str, classes: int | None = None) -> tuple[tuple[str, ...] | None, int]:
    """Return the names of the classes, None where they are numbers, and how many there are.

    Names that are all whole numbers are those numbers, so that folders 0 to 9 are the classes 0 to 9.

    Args:
        labels: of all rows.
        said: how errors begin.
        classes: how many there must be, None to count them.

    Raises:
        DataError: all rows are of one class, there is another number of names, or the numbers go beyond the rows.
    """
    present = np.unique(labels.index)
    if len(present) < 2:
        only = repr(labels.names[present[0]]) if labels.names else present[0]
        raise DataError(f"{said}: all {len(labels)} rows are of one class, {only}; there must be 2 classes at least")
    values = _values(labels)
    if labels.declared or values is None:
        names = labels.names or ()
        if classes not in (None, len(names)):
            raise DataError(f"{said}: has {len(names)} classes ({listed(names)}), not {classes}")
        return names, len(names)
    count = int(values.max()) + 1
    if classes is None and count > len(labels):
        raise DataError(
            f"{said}: labels go up to {count - 1} in {len(labels)} rows; number the classes from 0, store them as "
            "text, or say dataset.classes"
        )
    return None, classes or count


def fit_labels(labels: Labels, names: tuple[str, ...] | None, classes: int, said: str, whose: str) -> NDArray[np.int64]:
    """Return the labels as the run counts its classes, int64 (n,).

    Args:
        labels: as they are stored.
        names: of the run's classes, None where they are numbers.
        classes: how many there are.
        said: how errors begin.
        whose: what the run's classes are called in errors, such as `the run's`.

    Raises:
        DataError: a label that the run does not have.
    """
    if not len(labels):
        raise DataError(f"{said}: has no rows")
    if names is not None and labels.names is not None:
        place = {name: number for number, name in enumerate(names)}
        present = [labels.names[index] for index in np.unique(labels.index)]
        for name in (name for name in present if name not in place):
            raise DataError(f"{said}: has the class {name!r}, which is none of {whose} ({listed(names)})")
        return np.array([place.get(name, -1) for name in labels.names], np.int64)[labels.index]
    if labels.declared and len(labels.names or ()) != classes:
        raise DataError(f"{said}: has {len(labels.names or ())} classes ({listed(labels.names or ())}), not {classes}")
    index = labels.index
    if labels.names is not None and not labels.declared:
        values = _values(labels)
        if values is None:
            some = repr(labels.names[index[0]])
            raise DataError(f"{said}: classes have names, such as {some}; {whose} are the numbers 0 to {classes - 1}")
        index = values[index]
    for row in np.flatnonzero(index >= classes)[:1]:
        raise DataError(f"{said}: row {row} has the label {index[row]}; {whose} are 0 to {classes - 1}")
    return index


def listed(words: Sequence[str]) -> str:
    """Words for one line, cut where there are many."""
    return ", ".join(words[:MOST_LISTED]) + (", ..." if len(words) > MOST_LISTED else "")


def _values(labels: Labels) -> NDArray[np.int64] | None:
    """The number that each name is, or each index where there are no names; None where one is no whole number."""
    if labels.names is None:
        return labels.index
    # the same digits back, so that no two names are one number
    if all(name.isascii() and name.isdecimal() and len(name) < 10 and str(int(name)) == name for name in labels.names):
        return np.array([int(name) for name in labels.names], np.int64)
    return None
