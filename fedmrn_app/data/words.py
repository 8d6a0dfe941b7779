"""Texts and whole numbers that look like inputs of a table, and name a split, a person or a day instead."""

from __future__ import annotations

import re
from typing import Any

from fedmrn_app.data.splits import WORDS

LABEL_COLUMNS = ("label", "labels", "target", "class", "y")  # names by which a column of labels is found
SPLIT_COLUMNS = ("split", "fold", "subset", "set", "partition")
_SPLIT_WORDS = frozenset(("holdout", "hold-out", "hold_out", *(word for words in WORDS.values() for word in words)))
_PERSON = r"(patient|subject|participant|person|mrn|case|pat|pseudonym|user|customer)"
_COUNTED = r"(?!(.*[_ .-])?(per|by|use|new|active|best|worst|test|edge|is|has|num|number|count)[_ .-])"
PERSON_NAMES = re.compile(rf"{_COUNTED}(.*[_ .-])?{_PERSON}([_ .-]?(no|nr|num|number|code|key|name|pseudonym))?")
_PERHAPS = re.compile(r"(.*[_ .-])?(subject|case|user|customer)")  # school subjects, upper case, kinds of customers
MIN_PERSONS = 3  # two values of a column called person may be a yes and a no
MIN_CODES = 20  # fewer different values such as A1 and A2 may be grades
_CODE = re.compile(r"\s*([^\d\s]*[A-Za-z][^\d\s]*)\d+\s*")
_DAYS = r"^\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](\d{2}|\d{4}))([ T]\d{1,2}:\d\d.*)?\s*$"
_FIRST = 100  # values that tell of most columns that they hold something else


def names_splits(name: str, column: Any) -> bool:
    """Return whether a column of text is called like a split, and holds nothing but the names of splits."""
    if name.lower() not in SPLIT_COLUMNS:
        return False
    return {str(value).strip().lower() for value in column.drop_null().unique().to_pylist()} <= _SPLIT_WORDS


def names_persons(name: str, different: int, texts: Any = None) -> bool:
    """Return whether a column is called like a person, of whom each may have several rows.

    Args:
        name: of the column.
        different: the number of its values.
        texts: the column where it holds texts, of which a few words without digits may be kinds of persons.
    """
    if different < MIN_PERSONS or not PERSON_NAMES.fullmatch(name.lower()):
        return False
    if texts is None or different > MIN_CODES or not _PERHAPS.fullmatch(name.lower()):
        return True
    return all(any(map(str.isdigit, value)) for value in texts.drop_null().unique().to_pylist())


def are_codes(column: Any, different: int) -> bool:
    """Return whether all texts of a column are the same letters with a number, such as P100, many of them different."""
    if different < MIN_CODES:
        return False
    found = {_prefix(value) for value in column.slice(0, _FIRST).drop_null().unique().to_pylist()}
    if len(found) != 1 or None in found:
        return False
    return {_prefix(value) for value in column.drop_null().unique().to_pylist()} == found


def _prefix(text: str) -> str | None:
    match = _CODE.fullmatch(text)
    return match[1] if match else None


def are_days(column: Any) -> bool:
    """Return whether all values of a column are days: texts such as 31.01.2024, or whole numbers such as 20240131."""
    from pyarrow import compute, types

    values = column.drop_null()
    for part in (values.slice(0, _FIRST), values):
        if types.is_integer(values.type):
            month, year = compute.divide(part, 100), compute.divide(part, 10_000)
            day = compute.subtract(part, compute.multiply(month, 100))
            month = compute.subtract(month, compute.multiply(year, 100))
            limits = ((year, 1900, 2100), (month, 1, 12), (day, 1, 31))
            fits = all(_within(numbers, least, most) for numbers, least, most in limits)
        else:
            fits = bool(compute.all(compute.match_substring_regex(part, _DAYS)).as_py())
        if not fits:
            return False
    return len(values) > 0


def _within(numbers: Any, least: int, most: int) -> bool:
    from pyarrow import compute

    ends = compute.min_max(numbers).as_py()
    return ends["min"] is not None and bool(least <= ends["min"] and ends["max"] <= most)
