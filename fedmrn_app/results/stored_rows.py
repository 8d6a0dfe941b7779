"""The rows of a run's rounds in the form from which it resumes: a file to which each round appends a line.

    {"name": "0123456789abcdef"}      the run's name
    {"round": "1", "accuracy": ...}   the row of a round by its columns, as text

They are not in the state, which is written again and again: what a round costs would grow with the number of rounds.
The state of a private run could not hold them either, because they tell about clients. A row is written before the
state of its round, so that the file may hold more rounds than the state, never fewer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmrn_app.errors import RunError
from fedmrn_app.system.atomic_io import write_durably

ROWS = "rounds.jsonl"
_BEFORE = "rounds.json"  # of private runs of earlier versions; other runs had their rows in the state

Row = Mapping[str, str]


def start_rows(folder: Path, name: str, rows: Sequence[Row]) -> None:
    """Write the name of a run and its rows durably, in place of what the folder holds."""
    write_durably(folder / ROWS, b"".join(map(_line, ({"name": name}, *rows))))


def append_row(folder: Path, row: Row) -> None:
    """Append the row of a round durably."""
    with (folder / ROWS).open("ab") as file:
        file.write(_line(row))
        file.flush()
        os.fsync(file.fileno())


def read_rows(folder: Path, facts: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the rows of the finished rounds.

    Args:
        folder: the run's folder.
        facts: of the run's state, which say its name and how many rounds are finished.

    Raises:
        RunError: the file is missing, damaged or another run's.
    """
    if "rows" in facts:
        return list(facts["rows"])
    path = folder / ROWS
    if not path.exists() and (folder / _BEFORE).exists():
        path = folder / _BEFORE
    done = int(facts["round"])
    try:
        name, rows = _stored(path, done)
        if name != facts["name"]:
            raise ValueError("they are those of another run")
        if [row["round"] for row in rows] != [*map(str, range(1, done + 1))]:
            raise ValueError(f"there are {len(rows)} of {done}, or they are not in order")
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{path}: the rows of the run cannot be read ({error})"
        raise RunError(reason, code="no-rows", value=str(path)) from None
    return rows


def _stored(path: Path, done: int) -> tuple[str, list[dict[str, str]]]:
    """Return the name of the run and the rows of its first `done` rounds."""
    if path.name == _BEFORE:
        stored = json.loads(path.read_bytes())
        return stored["name"], stored["rows"][:done]
    head, *rows = path.read_bytes().splitlines()[: done + 1]  # the line of a further round may be incomplete
    return json.loads(head)["name"], [_parsed(row, number) for number, row in enumerate(rows, 2)]


def _parsed(row: bytes, number: int) -> dict[str, str]:
    """Return the row of one line of the file, whose first line has the number 1."""
    try:
        parsed: dict[str, str] = json.loads(row)
    except ValueError:
        raise ValueError(f"line {number} is damaged") from None
    return parsed


def _line(value: Mapping[str, str]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
