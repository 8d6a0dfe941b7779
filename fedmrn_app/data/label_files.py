"""Tables beside images that name the image files, and so may hold their labels."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import islice
from pathlib import Path, PurePath

from fedmrn_app.data.text_files import TEXT_SUFFIXES

_ROWS = 100  # that are looked at


def label_file(folder: Path, images: Sequence[Path], ignored: Sequence[str]) -> Path | None:
    """Return a table in a folder of which most rows name one of the images, with or without its suffix; None for none.

    Args:
        folder: of the table.
        images: the files of the images.
        ignored: names of tables that are not looked at.
    """
    names = {path.name for path in images} | {path.stem for path in images}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in TEXT_SUFFIXES and path.name not in ignored and not path.name.startswith("."):
            with path.open(encoding="utf-8", errors="replace", newline="") as file:
                rows = [set(map(_name, row)) for row in islice(csv.reader(_separated(line) for line in file), 1, _ROWS)]
            if rows and 2 * sum(bool(names & row) for row in rows) > len(rows):
                return path
    return None


def _separated(line: str) -> str:
    """Return a line whose values are separated by commas, so that they can be looked at."""
    return line.replace("\0", "").translate(str.maketrans(";\t|:{}[]", ",,,,    "))


def _name(value: str) -> str:
    return PurePath(value.strip().strip('"')).name
