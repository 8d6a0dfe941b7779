"""Tables in text files: CSV with commas, semicolons, tabs or bars and a line of names, and JSON lines."""

from __future__ import annotations

import csv
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from fedmrn_app.data.place import Place, first_line
from fedmrn_app.errors import needs_extra

JSON_LINES = ".jsonl"
TEXT_SUFFIXES = (".csv", ".tsv", JSON_LINES)
_SEPARATORS = ",;\t|"
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

    tables = [(_read_json if file.suffix.lower() == JSON_LINES else _read_csv)(file, place) for file in files]
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
    with place.reading():
        return pyarrow.concat_tables(tables, promote_options="permissive")


def _read_json(file: Path, place: Place) -> Any:
    from pyarrow import json

    with place.reading(f"read as JSON with an object on each line ({file.name})"):
        block = min(file.stat().st_size + 1, _LARGEST_BLOCK)
        return json.read_json(file, read_options=json.ReadOptions(block_size=block))


def _read_csv(file: Path, place: Place) -> Any:
    from pyarrow import ArrowException, types
    from pyarrow import csv as arrow

    with place.reading():
        with file.open("rb") as content:
            if content.peek(2)[:2] in (BOM_UTF16_LE, BOM_UTF16_BE):
                raise place.error("encoding", f"{file.name} is in UTF-16; {_way_to_recode('utf-16')}")
            first = TextIOWrapper(content, "utf-8-sig", "replace", newline="").readline()
        size = file.stat().st_size
    separator = max(_SEPARATORS, key=first.count)
    names = next(csv.reader([first.strip()], delimiter=separator), [])
    if not any(name.strip() for name in names):
        raise place.error("empty", f"{file.name} has no line of names")
    if values := [name.strip() for name in names if _is_number(name)]:
        problem = f"the first line of {file.name} holds values, such as {values[0]}, and not the names of the columns"
        raise place.error("names", f"{problem}; add a line of names")
    if strange := [name for name in names if "\ufffd" in name]:
        raise place.error("encoding", f"the name {strange[0]} in {file.name} is not UTF-8; {_way_to_recode('latin-1')}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise place.error("names", f"{file.name} has two columns called {twice!r}; rename one")
    try:
        table = arrow.read_csv(
            file,
            read_options=arrow.ReadOptions(block_size=min(size + 1, _LARGEST_BLOCK)),
            parse_options=arrow.ParseOptions(delimiter=separator, newlines_in_values=True),
        ).rename_columns([name.strip() for name in names])
    except (ArrowException, ValueError) as error:
        raise place.error("unreadable", f"{file.name} cannot be read as CSV: {first_line(error)}") from error
    for name, kind in zip(names, table.schema.types, strict=True):
        if types.is_binary(kind):  # so PyArrow reads text that is not UTF-8
            problem = f"column {name.strip()} of {file.name} has text that is not UTF-8"
            raise place.error("encoding", f"{problem}; {_way_to_recode('latin-1')}")
    return table


def _way_to_recode(encoding: str) -> str:
    read = f"pandas.read_csv(FILE, encoding='{encoding}', sep=None, engine='python')"
    return f"{read}.to_csv(FILE, index=False) saves it in UTF-8"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
