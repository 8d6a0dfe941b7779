"""What the columns of a table hold, and what becomes of each: input, label, group, or not used.

A column that is neither used nor named in `dataset.ignore` is refused, except for row numbers, ids and columns of one
value, which are recognized.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.labels import FEW_CLASSES, are_whole, listed
from fedmrn_app.data.place import Place
from fedmrn_app.data.rows import ColumnKind, Entry, RowQuery, listing, setting, way_to_ignore, way_to_keep
from fedmrn_app.data.words import are_codes, are_days, names_persons, names_splits

Table = Any  # a pyarrow.dataset.Dataset
MAX_CATEGORIES = 100  # a column of text with more different values is text
ROWS_PER_CATEGORY = 5  # in the mean; a column of text with fewer rows for each value is text
MIN_DIFFERENT = 50  # whole numbers that all differ in at least as many rows may be ids
MIN_CONSECUTIVE = 10  # whole numbers that count the rows are row numbers from as many rows on
INDEX_NAMES = re.compile(r"__index_level_\d+__|unnamed: ?\d+|level_\d+|index|")
_LEVEL = re.compile(r"level_\d+")  # may be a level of anything where its values repeat
ID_NAMES = re.compile(r"(.*[_ .-])?(id|ids|idx|uuid|guid|rownames?|row_?number)|.*[a-z](Id|ID|Idx|UUID)")


@dataclass(frozen=True)
class Found:
    """What one column holds.

    Attributes:
        kind: a kind that can be an input, or why the column is none: `row numbers`, `id`, `one value`, `no value`,
            `id of several rows`, `names of splits`, `whole numbers that all differ`, `vectors of whole numbers`,
            `numbers with commas`, `numbers as text`, `numbers with a unit`, `dates`, or the name of its type in Arrow.
        note: the number of values, such as `9 values`, or one of them.
        whole: whether it holds whole numbers.
    """

    kind: str
    note: str = ""
    whole: bool = False


INPUTS: tuple[ColumnKind, ...] = ("number", "category", "vector")  # of a table
RECOGNIZED = ("row numbers", "id", "one value", "no value")  # not used without being named
COMMAS = "numbers with commas"
COMMA_NUMBERS = r"^\s*[-+]?\d+([.,]\d+)*\s*$"
COMMA_WAY = "pandas.read_csv(FILE, sep=';', decimal=',') reads decimal commas, and thousands=',' commas of thousands"
SEVERAL = "id of several rows"
SPLITS = "names of splits"
SPLITS_WAY = "files called train.csv and test.csv are splits"
AS_TEXT = "numbers as text"
NUMBERS = r"^\s*[-+]?(0|[1-9]\d*|\d*\.\d+)([eE][-+]?\d+)?\s*$"  # codes such as 02139 are none
CODES = r"^\s*\d+\s*$"
AS_TEXT_WAY = "pandas.to_numeric(COLUMN, errors='coerce') makes numbers, and of other texts missing values to fill in"
UNITS = "numbers with a unit"
WITH_UNIT = r"^\s*[$€£¥]?\s*[-+]?(\d{1,3}(,\d{3})+(\.\d+)?|\d*\.?\d+)\s*([$€£¥%]|[A-Za-z]{0,3})\s*$"
UNITS_WAY = r"COLUMN.str.replace(r'[^\d.+-]', '', regex=True).astype(float) makes numbers"
DOUBTFUL: Mapping[str, ColumnKind] = {  # a person decides, and may make them inputs of a kind
    SEVERAL: "category",
    SPLITS: "category",
    "whole numbers that all differ": "number",
    "vectors of whole numbers": "vector",
}
IDS_WAY = "np.savez(FILE, x=IDS, y=LABELS) and dataset.form=ids read ids of tokens"


def read_column(table: Table, name: str, place: Place) -> Any:
    """Return a column as a `pyarrow.ChunkedArray`, with the values themselves where it stores numbers of them."""
    from pyarrow import types

    with place.reading():
        column = table.to_table(columns=[name]).column(name)
        return column.cast(column.type.value_type) if types.is_dictionary(column.type) else column


def value_numbers(column: Any) -> NDArray[np.int64]:
    """Return a number for each value of a column, int64 (n,), -1 for a missing one."""
    codes = column.combine_chunks().dictionary_encode().indices
    return np.asarray(codes.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)


def kind_of_type(kind: Any) -> str:
    """Return what values of an Arrow type are, as people call it, before the values are looked at."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_integer(kind):
        return "whole number"
    if types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind):
        return "number"
    if is_text(kind):
        return "text"
    if types.is_temporal(kind):
        return "dates"
    if types.is_null(kind):
        return "no value"
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if lists and kind_of_type(kind.value_type) in ("whole number", "number"):
        return "vector"
    return str(kind)


def is_text(kind: Any) -> bool:
    """Return whether values of an Arrow type are texts."""
    return str(kind) in ("string", "large_string", "string_view")


def look_at(table: Table, name: str, place: Place) -> Found:
    """Return what a column holds."""
    from pyarrow import compute, types

    kind, column = kind_of_type(table.schema.field(name).type), read_column(table, name, place)
    count, filled = len(column), len(column) - column.null_count
    if kind == "no value" or not filled:
        return Found("no value")
    if kind == "vector" and kind_of_type(column.type.value_type) == "whole number":
        return Found("vectors of whole numbers")
    if kind not in ("whole number", "number", "text"):
        return Found(kind)
    if types.is_boolean(column.type) and column.null_count:
        return Found("category", "2 values, and missing ones")
    if kind == "number" and not whole(column):
        return Found("number")
    with place.reading():
        different = compute.count_distinct(column, mode="only_valid").as_py()
    named = bool(INDEX_NAMES.fullmatch(name.lower()) or ID_NAMES.fullmatch(name) or ID_NAMES.fullmatch(name.lower()))
    unique = different == count and count > 2
    if kind == "text":
        if commas := comma_number(column):
            return Found(COMMAS, f"such as {commas}")
        found = _text(count, different, named, unique)
        if found.kind in ("category", "text") and (other := _no_category(name, column, found, different)):
            return other
        many = found.kind == "text" or (found.kind == "category" and different > FEW_CLASSES)
        return (_numbers_as_text(column) if many else None) or found
    consecutive = unique and _consecutive(column) and (named or count >= MIN_CONSECUTIVE)
    if unique and (named or consecutive):
        return Found("row numbers" if consecutive else "id", f"{different:,} different values")
    several = kind == "whole number" and 1 < different < count
    if several and ((named and not _LEVEL.fullmatch(name.lower())) or names_persons(name, different)):
        return Found(SEVERAL, f"{different:,} different values", whole=True)
    if kind == "whole number" and different > 1 and are_days(column):
        return Found("dates", f"such as {column.drop_null()[0]}")
    if kind == "whole number" and unique and count >= MIN_DIFFERENT:
        return Found("whole numbers that all differ")
    return Found("number")


def _no_category(name: str, column: Any, found: Found, different: int) -> Found | None:
    """Return what texts hold that only look like categories or sentences; None where they do not."""
    if names_splits(name, column):
        return Found(SPLITS, found.note)
    if are_days(column):
        return Found("dates", f"such as {column.drop_null()[0]}")
    if different == len(column):
        return None
    persons = found.kind == "category" and names_persons(name, different, column)
    return Found(SEVERAL, found.note) if persons or are_codes(column, different) else None


def comma_number(column: Any) -> str | None:
    """Return a number with a comma from a column of text that holds such numbers only; None from another column."""
    from pyarrow import compute

    values = column.drop_null()
    if not len(values) or not compute.all(compute.match_substring_regex(values, COMMA_NUMBERS)).as_py():
        return None
    found = compute.filter(values, compute.match_substring(values, ","))
    return str(found[0]) if len(found) else None


def _numbers_as_text(column: Any) -> Found | None:
    """Return what says that more than half of the texts of a column are numbers, and one of the others."""
    from pyarrow import compute

    values = column.drop_null()
    if unit := _unit(values):
        return Found(UNITS, f"such as {unit!r}")
    begin_with_zero = compute.any(compute.match_substring_regex(values, r"^\s*0\d")).as_py()
    if begin_with_zero and compute.all(compute.match_substring_regex(values, CODES)).as_py():
        return None
    others = compute.filter(values, compute.invert(compute.match_substring_regex(values, NUMBERS)))
    if 2 * len(others) >= len(values):
        return None
    return Found(AS_TEXT, f"beside {str(others[0])!r}" if len(others) else f"such as {str(values[0])!r}")


def _unit(values: Any) -> str | None:
    """Return the first of texts that are all numbers with the same unit, such as $12 or 56 kg; None of other texts."""
    from pyarrow import compute

    if not compute.all(compute.match_substring_regex(values, WITH_UNIT)).as_py():
        return None
    units = compute.utf8_lower(compute.replace_substring_regex(values, r"[-+.,\d\s]", "")).unique().to_pylist()
    return str(values[0]).strip() if len(units) == 1 and units[0] else None


def _text(count: int, different: int, named: bool, unique: bool) -> Found:
    note = f"{different:,} value{'s' * (different != 1)}"
    if unique and named:
        return Found("id", f"{different:,} different values")
    if different == 1:
        return Found("one value")
    few = different < count and different <= max(2, min(MAX_CATEGORIES, count // ROWS_PER_CATEGORY))
    if named:
        return Found(SEVERAL, note)
    return Found("category" if few else "text", note)


def whole(column: Any) -> bool:
    """Return whether a column of decimals holds whole numbers."""
    from pyarrow import types

    return types.is_floating(column.type) and are_whole(column.to_numpy())


def _consecutive(column: Any) -> bool:
    from pyarrow import compute

    ends = compute.min_max(column).as_py()
    return bool(ends["max"] - ends["min"] == len(column) - 1)


@dataclass(frozen=True)
class Plan:
    """What becomes of the columns of a table.

    Attributes:
        features: the columns that are inputs, in their order; for a text the one column.
        kinds: what these hold.
        text: whether the input is a text.
    """

    features: tuple[str, ...]
    kinds: Mapping[str, ColumnKind]
    text: bool = False


def plan_columns(table: Table, taken: Sequence[str], query: RowQuery) -> Plan:
    """Decide what becomes of the columns that are neither label nor group.

    Args:
        table: the rows.
        taken: the columns of the label and of the groups.
        query: what the configuration names.

    Raises:
        DataError: a column cannot be used and is not named in `dataset.ignore`, or there is no input.
    """
    check_names(table, query)
    if query.text_column is not None:
        _must_be_text(table, query, query.text_column)
        return Plan((query.text_column,), {query.text_column: "text"}, text=True)
    if query.feature_columns is not None:
        for name in query.feature_columns:
            if name == taken[0]:
                raise query.place.error(
                    "column", f"column {name} is the label; leave it out of dataset.feature_columns"
                )
        return Plan(query.feature_columns, {name: _named_kind(table, name, query) for name in query.feature_columns})
    rest = [name for name in table.schema.names if name not in (*taken, *query.ignore)]
    found = {name: _given(table, name, query) for name in rest}
    used = [name for name in rest if found[name].kind not in RECOGNIZED]
    if len(used) == 1 and found[used[0]].kind == "text" and query.form in (None, "ids"):
        return Plan((used[0],), {used[0]: "text"}, text=True)
    refuse_unused({name: found[name] for name in used if found[name].kind not in INPUTS}, query)
    if not used:
        columns = listed([name for name in table.schema.names if name not in taken])
        raise query.place.error("column", f"no column holds inputs beside the label {taken[0]}; there are {columns}")
    kinds: dict[str, Any] = {name: found[name].kind for name in used}
    return Plan(tuple(used), kinds)


def column_names(table: Table) -> list[str]:
    """Return the names of all columns except the row numbers that pandas adds."""
    return [name for name in table.schema.names if not name.startswith("__index_level_")]


def known_column(table: Table, name: str, key: str, query: RowQuery) -> str:
    """Return a name that the configuration gives under a key; raises DataError if no column has it."""
    if name in table.schema.names:
        return name
    way = query.advice(key, "[NAME,...]" if key == "feature_columns" else "NAME")
    raise query.place.error(
        "column", f"has no column {name} (dataset.{key}); its columns are {listed(column_names(table))}; {way}"
    )


def check_names(table: Table, query: RowQuery) -> None:
    """Refuse names in `dataset.ignore` and `dataset.kinds` that no column has."""
    if query.on_device:
        return
    for key, names in (("ignore", query.ignore), ("kinds", tuple(query.kinds or ()))):
        for name in names:
            if name not in table.schema.names:
                columns = listed(table.schema.names)
                raise query.place.error("column", f"has no column {name} (dataset.{key}); its columns are {columns}")


def refuse_unused(found: Mapping[str, Found], query: RowQuery, beside: str = "") -> None:
    """Refuse columns that would not be used, or that a person must decide about; in one line with the options.

    Args:
        found: the columns by name, with what they hold.
        query: what the configuration names.
        beside: what is the input, such as ` beside images`; empty for a table.

    Raises:
        DataError: there is one.
    """
    if not found:
        return
    words = listed([f"{name} ({one.kind}{', ' + one.note if one.note else ''})" for name, one in found.items()])
    name, first = next(iter(found.items()))
    ways = [way_to_ignore(list(found))]
    doubtful = [name for name, one in found.items() if one.kind in DOUBTFUL]
    if doubtful and not beside:
        name, first = doubtful[0], found[doubtful[0]]
        way = f"{way_to_keep({name: DOUBTFUL[first.kind]})} makes {name} an input"
        ways.append(way + (" for each value, and with number instead a single one" if first.whole else ""))
        if first.kind == SEVERAL:
            ways.append(f"{setting('group_column', listing([name]))} makes it the group of partition=natural")
        if first.kind == SPLITS:
            ways.append(SPLITS_WAY)
        if first.kind == "vectors of whole numbers":
            ways.append(IDS_WAY)
    if any(one.kind == COMMAS for one in found.values()):
        ways.append(COMMA_WAY)
    numbers = {name: one.kind for name, one in found.items() if one.kind in (AS_TEXT, UNITS)}
    if numbers and not beside:
        ways += [way for kind, way in ((AS_TEXT, AS_TEXT_WAY), (UNITS, UNITS_WAY)) if kind in numbers.values()]
        ways.append(_way_to_categories(list(numbers)))
    texts = [name for name, one in found.items() if one.kind == "text"]
    if texts and not beside:
        ways.append(f"{setting('text_column', listing(texts[:1]))} reads that text alone")
        ways.append(_way_to_categories(texts))
    code = "ambiguous" if doubtful and len(doubtful) == len(found) else "unused"
    verb = "may be an input or none" if code == "ambiguous" else f"cannot be an input{beside or ' of a table'}"
    raise query.place.error(code, f"column{'s' * (len(found) > 1)} {words} {verb}; {'; '.join(ways)}")


def _way_to_categories(names: Sequence[str]) -> str:
    kinds: dict[str, ColumnKind] = dict.fromkeys(names, "category")
    return f"{way_to_keep(kinds)} makes {'its' if len(names) == 1 else 'their'} values an input each"


def _given(table: Table, name: str, query: RowQuery) -> Found:
    """Return what a column holds, as `dataset.kinds` says or as it looks."""
    if name in (query.kinds or {}):
        return Found(_named_kind(table, name, query))
    return look_at(table, name, query.place)


def _named_kind(table: Table, name: str, query: RowQuery) -> ColumnKind:
    """Return the kind of a column that is named as an input, which `dataset.kinds` may say.

    Raises:
        DataError: the column holds another kind, or none that can be an input.
    """
    known_column(table, name, "feature_columns", query)
    held, said = kind_of_type(table.schema.field(name).type), (query.kinds or {}).get(name)
    plain: str = {"whole number": "number", "text": "category"}.get(held, held)
    allowed = {"number": ("number", "category"), "category": ("category", "text"), "vector": ("vector",)}.get(plain)
    key = "dataset.kinds" if said else "dataset.feature_columns"
    if allowed is None or (said or allowed[0]) not in allowed:
        whose = f"not {said or 'numbers, categories or vectors'}{' as in the run' if query.on_device else ''}"
        raise query.place.error("type", f"column {name} ({key}) is {table.schema.field(name).type}, {whose}")
    kind: Any = said or allowed[0]
    return kind  # type: ignore[no-any-return]


def _must_be_text(table: Table, query: RowQuery, name: str) -> None:
    known_column(table, name, "text_column", query)
    kind = table.schema.field(name).type
    if kind_of_type(kind) != "text":
        raise query.place.error("type", f"column {name} (dataset.text_column) is {kind}, not text")


def entries_of(table: Table, used: Mapping[str, Entry], query: RowQuery) -> list[Entry]:
    """Return what becomes of each column of a table, in their order.

    Args:
        table: the rows.
        used: the columns that are inputs, label or group.
        query: what the configuration names.
    """

    def entries() -> Iterator[Entry]:
        for name in table.schema.names:
            if name in used:
                yield used[name]
                continue
            kind = kind_of_type(table.schema.field(name).type)
            found = look_at(table, name, query.place) if kind in ("whole number", "number", "text") else Found(kind)
            named = "dataset.ignore" if name in query.ignore else ""
            yield Entry(name, found.kind, "not used", ", ".join(filter(None, (found.note, named))))

    return list(entries())
