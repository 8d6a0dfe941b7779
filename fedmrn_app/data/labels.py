"""Labels as they are stored, numbers or names, and as class numbers from 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.place import Place

LISTED_WORDS = 12  # at most this many names are listed in an error
MAX_LABEL = 1 << 31
NO_LABEL = ("", "nan", "null", "n/a", "#n/a", "<na>")  # texts that files have where there is no label
MAYBE_NO_LABEL = ("?", "-", "none", "unknown", "unlabeled", "unlabelled", "tbd", "undefined")  # a class, or no label
FEW_CLASSES = 20  # more different whole numbers may be a quantity, such as an age
ROWS_PER_CLASS = 10  # in the mean, of more classes than that


@dataclass(frozen=True)
class Labels:
    """The labels of some rows.

    Attributes:
        index: int64 (n,), from 0.
        names: the names that the indices stand for, in their order; None where the labels are plain numbers.
        declared: whether the data set fixes the order of the names (a ClassLabel column).
        values: float64 (n,), the labels where they are a quantity; all indices are 0 then. None for classes.
    """

    index: NDArray[np.int64]
    names: tuple[str, ...] | None = None
    declared: bool = False
    values: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.index)

    def name_numbers(self) -> NDArray[np.int64] | None:
        """Return the number that each name is; None where a name is not a whole number, or their order is declared."""
        names = self.names or ()
        # each number has one spelling: two names are never the same number
        if self.declared or not all(n.isascii() and n.isdecimal() and len(n) < 10 and str(int(n)) == n for n in names):
            return None
        return np.array([int(name) for name in names], np.int64)


def encode_labels(values: NDArray[Any], place: Place, declared: tuple[str, ...] | None = None) -> Labels:
    """Return labels (n,) or (n, 1) from whole numbers, from booleans, or from texts in alphabetical order.

    Numbers may stand for `declared` names, and may be stored as floating-point numbers, as pandas does beside gaps.

    Raises:
        DataError: another shape or type, a number below 0 or without a name, or no rows.
    """
    values = _one_for_each_row(values, place)
    if values.dtype.kind == "S":
        values = np.asarray(np.char.decode(values, "utf-8", "replace"))
    if values.dtype.kind == "U":
        names, index = np.unique(values, return_inverse=True)
        _refuse_no_label(names, index, place)
        return Labels(index.astype(np.int64), tuple(map(str, names)))
    if values.dtype.kind == "f" and are_whole(values) and np.all(np.abs(values) < MAX_LABEL):
        values = values.astype(np.int64)
    if values.dtype.kind not in "biu":
        raise place.error("type", decimals(f"labels are {values.dtype}", place))
    if declared is None and np.array_equal(np.unique(values), [-1, 1]):
        return Labels((values > 0).astype(np.int64), ("-1", "1"))
    index = values.astype(np.int64)
    for row in np.flatnonzero((index < 0) | (index >= (MAX_LABEL if declared is None else len(declared))))[:1]:
        way = f"labels are below {MAX_LABEL if declared is None else len(declared)}; store others as text"
        if index[row] < 0:
            way = "labels below 0 often stand for none: leave such rows out, or store the labels as words"
        raise place.error("label", f"row {row} has the label {index[row]}; {way}")
    return Labels(index, declared, declared is not None)


def _refuse_no_label(names: NDArray[Any], index: NDArray[Any], place: Place) -> None:
    """Refuse rows (n,) whose label is a name that stands for none."""
    for number in (number for number, name in enumerate(names) if name.strip().lower() in NO_LABEL):
        rows = np.flatnonzero(index == number)
        problem = f"{len(rows):,} of {len(index):,} rows have the label {str(names[number])!r}, such as row {rows[0]}"
        raise place.error("label", f"{problem}; leave rows without a label out, or give their class a name")


def are_whole(values: NDArray[Any]) -> bool:
    """Return whether floating-point numbers are finite and whole, as pandas stores integers beside gaps."""
    return bool(np.all(np.isfinite(values)) and np.all(values == np.floor(values)))


def encode_quantity(values: NDArray[Any], place: Place) -> Labels:
    """Return labels (n,) or (n, 1) that are numbers on a scale.

    Raises:
        DataError: another shape or type, a value that is not finite, or no rows.
    """
    values = _one_for_each_row(values, place)
    if values.dtype.kind not in "iuf":
        what = "text" if values.dtype.kind in "US" else str(values.dtype)
        raise place.error("type", f"labels are {what}; with task=regression they must be numbers")
    numbers = values.astype(np.float64)
    for row in np.flatnonzero(~np.isfinite(numbers))[:1]:
        raise place.error("label", f"row {row} has the label {numbers[row]}; fill it in or leave the row out")
    return Labels(np.zeros(len(numbers), np.int64), values=numbers)


def decimals(found: str, place: Place) -> str:
    """Return why decimals are no classes, with the way to learn them as a quantity; `found` says what there is."""
    problem = f"{found}; classes must be whole numbers or text"
    return problem if place.key == "data-path" else f"{problem}, and task=regression learns a quantity"


def describe_labels(labels: Labels) -> str:
    """Return a few words about all labels: the number of classes, or the range of a quantity."""
    return f"{len(np.unique(labels.index))} classes" if labels.values is None else spread_of(labels.values)


def spread_of(values: NDArray[np.float64]) -> str:
    """Return the range and the mean of a quantity (n,)."""
    return f"from {values.min():.6g} to {values.max():.6g}, {values.mean():.6g} in the mean"


def _one_for_each_row(values: NDArray[Any], place: Place) -> NDArray[Any]:
    """Return labels (n,) from those of shape (n,) or (n, 1)."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        problem = f"labels have shape {values.shape}; each row must have one number or text"
        one_hot = values.ndim == 2 and values.dtype.kind in "biuf" and bool(np.all((values != 0).sum(1) == 1))
        way = "; the rows are one-hot, and y.argmax(1) gives their numbers" if one_hot else ""
        raise place.error("shape", f"{problem}{way}")
    if not len(values):
        raise place.error("empty", "has no rows")
    return values


def count_classes(labels: Labels, place: Place, classes: int | None = None) -> tuple[tuple[str, ...] | None, int]:
    """Return the names of the classes, None where they are the numbers from 0, and the number of classes.

    Names that are all whole numbers are those numbers, so that folders 0 to 9 are the classes 0 to 9. Numbers with
    gaps, or that do not begin at 0, are names: labels 1 to 10 are ten classes. If `classes` is given, there must be as
    many.

    Raises:
        DataError: all rows are of one class, there is another number of names, or the numbers may be a quantity.
    """
    present = np.unique(labels.index)
    if len(present) < 2:
        only = repr(labels.names[present[0]]) if labels.names else present[0]
        raise place.error(
            "classes", f"all {len(labels)} rows are of one class, {only}; there must be at least 2 classes"
        )
    numbers = labels.index if labels.names is None else labels.name_numbers()
    if numbers is None:
        names = labels.names or ()
        if classes not in (None, len(names)):
            raise place.error("classes", f"has {len(names)} classes ({listed(names)}), not {classes}")
        if classes is None and not labels.declared:
            _refuse_doubtful(names, labels.index, place)
        return names, len(names)
    different = np.unique(numbers)
    least, most = int(different[0]), int(different[-1])
    if classes is not None and (most < classes or len(different) != classes):
        return None, classes
    regular = least in (0, 1) and most - least + 1 == len(different)
    few = len(different) <= FEW_CLASSES or (regular and len(labels) >= ROWS_PER_CLASS * len(different))
    if classes is None and labels.names is None and not few:
        raise place.error(
            "ambiguous",
            f"the labels are {len(different)} different whole numbers from {least} to {most}; are they classes or a "
            f"quantity? dataset.classes={len(different)} makes them classes, task=regression learns a quantity",
        )
    if least == 0 and most + 1 == len(different):
        return None, most + 1
    return tuple(map(str, different)), len(different)


def _refuse_doubtful(names: tuple[str, ...], index: NDArray[np.int64], place: Place) -> None:
    """Refuse names of which two may be one class, one no class, or some several classes at once."""
    keep = f"dataset.classes={len(names)}"
    if pair := alike(names):
        problem = f"the classes {pair[0]!r} and {pair[1]!r} differ in spaces, capitals or leading zeros only"
        raise place.error("ambiguous", f"{problem}; write them alike, or keep them apart by {keep}")
    words = () if "+" in names else MAYBE_NO_LABEL  # beside a plus, a minus is a class
    if none := next((name for name in names if name.strip().lower() in words), None):
        count = int((index == names.index(none)).sum())
        problem = f"{count:,} of {len(index):,} rows have the label {none!r}, which may stand for none"
        raise place.error("ambiguous", f"{problem}; leave such rows out, or make it a class by {keep}")
    for separator in "|;,":
        several = [name for name in names if separator in name]
        parts = {part.strip() for name in several for part in name.split(separator)}
        if several and 2 * len(parts & set(names)) > len(parts):
            problem = f"the label {several[0]!r} may be several classes at once, of which a row can have only one"
            raise place.error("ambiguous", f"{problem}; write one class in each row, or make it a class by {keep}")


def alike(names: Sequence[str], *, letters: bool = False) -> tuple[str, str] | None:
    """Return two names that differ in spaces, capitals or leading zeros only; None where there are none.

    Args:
        names: different names.
        letters: whether a single letter and its capital are alike too.
    """
    seen: dict[str, str] = {}
    for name in names:
        short = " ".join(name.split())
        short = short.lstrip("0") or "0" if short.isdecimal() else short
        other = seen.setdefault(short.casefold() if letters or len(short) > 1 else short, name)
        if other != name:
            return other, name
    return None


def fit_labels(
    labels: Labels, names: tuple[str, ...] | None, classes: int, place: Place, whose: str
) -> NDArray[np.int64]:
    """Return the labels as the run numbers its classes, int64 (n,).

    Args:
        labels: the labels as they are stored.
        names: the names of the run's classes; None where they are numbers.
        classes: the number of the run's classes.
        place: what errors name.
        whose: what errors call the run's classes.

    Raises:
        DataError: a label is not among the run's classes.
    """
    if not len(labels):
        raise place.error("empty", "has no rows")
    if names is not None and labels.names is not None:
        class_of = {name: number for number, name in enumerate(names)}
        for name in (labels.names[index] for index in np.unique(labels.index)):
            if name not in class_of:
                raise place.error("label", f"has the class {name!r}, which is not among {whose} ({listed(names)})")
        return np.array([class_of.get(name, -1) for name in labels.names], np.int64)[labels.index]
    if labels.declared and len(labels.names or ()) != classes:
        stored = labels.names or ()
        raise place.error("classes", f"has {len(stored)} classes ({listed(stored)}), not {classes}")
    index = labels.index
    values = None if names is None or labels.declared else _numbered(names)
    if values is not None:  # the run's classes are these numbers, and the labels are too
        places = np.searchsorted(values, index)
        for row in np.flatnonzero(values[np.minimum(places, len(values) - 1)] != index)[:1]:
            raise place.error(
                "label", f"row {row} has the label {index[row]}, which is not among {whose} ({listed(names or ())})"
            )
        return places.astype(np.int64)
    if labels.names is not None and not labels.declared:
        numbers = labels.name_numbers()
        if numbers is None:
            some = repr(labels.names[index[0]])
            raise place.error(
                "label", f"classes have names, such as {some}; {whose} are the numbers 0 to {classes - 1}"
            )
        index = numbers[index]
    for row in np.flatnonzero(index >= classes)[:1]:
        raise place.error("label", f"row {row} has the label {index[row]}; {whose} are 0 to {classes - 1}")
    return index


def _numbered(names: tuple[str, ...]) -> NDArray[np.int64] | None:
    """Return the numbers that all names are, in ascending order; None where they are others."""
    numbers = Labels(np.arange(len(names)), names).name_numbers()
    return numbers if numbers is not None and bool(np.all(np.diff(numbers) > 0)) else None


def listed(words: Sequence[str]) -> str:
    """Return words for one line, cut where there are many."""
    return ", ".join(words[:LISTED_WORDS]) + (", ..." if len(words) > LISTED_WORDS else "")
