"""Tables in text files: CSV with commas, semicolons, tabs or bars and a line of names, and JSON lines."""

from __future__ import annotations

import csv
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Collection, Sequence
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any

from fedmrn_app.data.place import Place, first_line
from fedmrn_app.data.words import LABEL_COLUMNS
from fedmrn_app.errors import needs_extra

JSON_LINES = ".jsonl"
TEXT_SUFFIXES = (".csv", ".tsv", JSON_LINES)
_SEPARATORS = ",;\t|"
_HEAD, _HEAD_ROWS = 1 << 20, 1000  # bytes and rows that tell of codes
_SAID = re.compile(r'"?sep=([,;\t|])"?\s*')  # the first line of tables that Excel is to open
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_NAMELESS = "Unnamed: "  # as pandas calls them
_LOOKED_AT = 100  # texts of several lines in a column
_E_CODE = re.compile(r"\d+E\d+")
_LARGEST_BLOCK = (1 << 31) - 1  # bytes that PyArrow reads at once


def read_text_files(files: Sequence[Path], place: Place, values: Sequence[str] | None = None, column: str = "") -> Any:
    """Return the rows of all files as one `pyarrow.Table`.

    Types are found from all values of a file, not from its first ones.

    Args:
        files: the files.
        place: what errors name.
        values: a value for each file, which its rows have in a further column; None for no such column.
        column: the name of this column.

    Raises:
        DataError: a file cannot be read, is CSV without a line of names, or has other columns than the first.
    """
    with needs_extra("data", place.key, place.value):
        import pyarrow

    codes = set[str]().union(*(_codes(file, place) for file in files if file.suffix.lower() != JSON_LINES))
    tables = [
        _read_json(file, place) if file.suffix.lower() == JSON_LINES else _read_csv(file, codes, place)
        for file in files
    ]
    for file, table in zip(files, tables, strict=True):
        if set(table.column_names) != set(tables[0].column_names):
            odd = sorted(set(table.column_names) ^ set(tables[0].column_names))
            problem = f"column {odd[0]} is in only one of {files[0].name} and {file.name}"
            raise place.error("column", f"{problem}; all files must have the same columns")
    if values is not None:
        tables = [
            table.append_column(column, pyarrow.array([value] * len(table), pyarrow.string()))
            for table, value in zip(tables, values, strict=True)
        ]
    for file, table in zip(files, tables, strict=True):
        _refuse_other_types(tables[0], table, (files[0], file), place)
    with place.reading():
        return pyarrow.concat_tables(tables, promote_options="permissive")


def _refuse_other_types(one: Any, other: Any, files: tuple[Path, Path], place: Place) -> None:
    """Refuse a column that is text in one file and something else in another."""
    from pyarrow import string, types

    for name in one.column_names:
        kinds = one.schema.field(name).type, other.schema.field(name).type
        if string() in kinds and kinds[0] != kinds[1] and not any(map(types.is_null, kinds)):
            problem = f"column {name} is {kinds[0]} in {files[0].name} and {kinds[1]} in {files[1].name}"
            raise place.error("type", f"{problem}; write it in one type")


def _read_json(file: Path, place: Place) -> Any:
    from pyarrow import json

    with place.reading(f"read as JSON with an object on each line ({file.name})"):
        block = min(file.stat().st_size + 1, _LARGEST_BLOCK)
        return json.read_json(file, read_options=json.ReadOptions(block_size=block))


def _read_csv(file: Path, codes: Collection[str], place: Place) -> Any:
    from pyarrow import ArrowException, string, types
    from pyarrow import csv as arrow

    with place.reading():
        with file.open("rb") as content:
            if content.peek(2)[:2] in (BOM_UTF16_LE, BOM_UTF16_BE):
                raise place.error("encoding", f"{file.name} is in UTF-16; {_way_to_recode('utf-16')}")
            head = TextIOWrapper(content, "utf-8-sig", "replace", newline="")
            lines = [head.readline(), head.readline()]
        block = min(file.stat().st_size + 1, _LARGEST_BLOCK)
    separator, skipped = _separator(lines)
    first = lines[skipped]
    names = _read_names(first, separator, file, place)
    try:
        table = arrow.read_csv(
            file,
            read_options=arrow.ReadOptions(block_size=block, column_names=names, skip_rows=skipped + 1),
            parse_options=arrow.ParseOptions(delimiter=separator, newlines_in_values=True),
            convert_options=arrow.ConvertOptions(column_types={name: string() for name in names if name in codes}),
        )
    except (ArrowException, ValueError) as error:
        raise place.error("unreadable", f"{file.name} cannot be read as CSV: {first_line(error)}") from error
    for name, kind in zip(names, table.schema.types, strict=True):
        if types.is_binary(kind):  # so PyArrow reads text that is not UTF-8
            problem = f"column {name} of {file.name} has text that is not UTF-8"
            raise place.error("encoding", f"{problem}; {_way_to_recode('latin-1')}")
        if types.is_string(kind):
            _refuse_open_quotes(table, name, separator, file, place)
    empty = [name for name in names if name.startswith(_NAMELESS) and types.is_null(table.column(name).type)]
    return table.drop_columns(empty)  # as separators at the end of each line make


def _separator(lines: Sequence[str]) -> tuple[str, int]:
    """Return what separates the columns of a file, given its first lines, and how many lines only say that: 0 or 1."""
    if said := _SAID.fullmatch(lines[0] if lines else ""):
        return said[1], 1
    return max(_SEPARATORS, key=lines[0].count if lines else "".count), 0


def _read_names(first: str, separator: str, file: Path, place: Place) -> list[str]:
    """Return the names of the columns in the first line of a file; of several without a name, those that pandas gives.

    Raises:
        DataError: the line holds no names, or the same one twice.
    """
    names = [name.strip() for name in next(csv.reader([first.rstrip("\r\n")], delimiter=separator), [])]
    if not any(names):
        raise place.error("empty", f"{file.name} has no line of names")
    if first.lstrip().startswith("#") and separator not in first:
        problem = f"{file.name} begins with a comment, {first.strip()[:40]!r}"
        raise place.error("names", f"{problem}; take such lines out, so that it begins with the names of the columns")
    if len(names) == 1 and len(first.split()) > 1:
        problem = f"{file.name} has one column, {names[0][:40]!r}, whose name has blanks"
        raise place.error("names", f"{problem}; columns are separated by commas, semicolons, tabs or bars")
    if values := _values_as_names(names):
        problem = f"the first line of {file.name} holds values, such as {values[0]}, and not the names of the columns"
        raise place.error("names", f"{problem}; add a line of names, or write names as words, such as c{values[0]}")
    if strange := [name for name in names if "\ufffd" in name]:
        raise place.error("encoding", f"the name {strange[0]} in {file.name} is not UTF-8; {_way_to_recode('latin-1')}")
    if names.count("") > 1:
        names = [name or f"{_NAMELESS}{number}" for number, name in enumerate(names)]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise place.error("names", f"{file.name} has two columns called {twice!r}; rename one")
    return names


def _codes(file: Path, place: Place) -> set[str]:
    """Return the columns whose first values are codes such as 02139 and 1E5, which numbers would merge."""
    with place.reading(), file.open("rb") as content:
        lines = content.read(_HEAD).decode("utf-8-sig", "replace").splitlines()
    separator, skipped = _separator(lines)
    try:
        rows = list(islice(csv.reader(lines[skipped:], delimiter=separator), _HEAD_ROWS))
    except csv.Error:  # what PyArrow cannot read either has a line of its own
        return set()
    whole = [row for row in rows if len(row) == len(rows[0])]
    columns = ([value.strip() for value in column] for column in zip(*whole, strict=True))
    return {name for name, *values in columns if _are_codes([value for value in values if value])}


def _are_codes(values: Sequence[str]) -> bool:
    zeros = any(len(value) > 1 and value[0] == "0" for value in values) and all(map(str.isdecimal, values))
    return zeros or (bool(values) and all(map(_E_CODE.fullmatch, values)))


def _way_to_recode(encoding: str) -> str:
    read = f"pandas.read_csv(FILE, encoding='{encoding}', sep=None, engine='python')"
    return f"{read}.to_csv(FILE, index=False) saves it in UTF-8"


def _values_as_names(names: Sequence[str]) -> list[str]:
    """Return the values in a first line of values; none where it names a label, or numbers the columns from 0."""
    found = [name for name in names if _NUMBER.fullmatch(name)]
    if found == [*map(str, range(len(found)))] or any(name.lower() in LABEL_COLUMNS for name in names):
        return []
    return found


def _refuse_open_quotes(table: Any, name: str, separator: str, file: Path, place: Place) -> None:
    """Refuse a text that holds whole lines of the file: its quotation mark is not closed."""
    from pyarrow import compute

    column, names = table.column(name), table.column_names
    other = names[0] if name == names[-1] else names[-1]
    part = 0 if other == names[0] else -1
    long = compute.filter(column, compute.greater(compute.count_substring(column, "\n"), 1))
    if other == name or not len(long):
        return
    known = {str(value) for value in table.column(other).unique().to_pylist()}
    for text in long.slice(0, _LOOKED_AT).to_pylist():
        lines = [line.split(separator) for line in text.splitlines()[1:-1]]
        whole = [line for line in lines if len(line) == len(names) and line[part].strip() in known]
        if 2 * len(whole) > len(lines):
            problem = f"column {name} of {file.name} has a text of {len(lines) + 2} lines, as where a quotation mark is"
            raise place.error("quotes", f'{problem} not closed: {text[:40]!r}; write "" for each " inside a text')
