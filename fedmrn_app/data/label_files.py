"""Tables beside images that name the image files, and so may hold their labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePath

from fedmrn_app.data.text_files import TEXT_SUFFIXES

_BYTES, _ROWS = 1 << 20, 100  # of a table that are looked at
_SEPARATORS = re.compile(r'[,;\t|:"{}\[\]]')  # of the values of CSV and JSON


def label_file(folder: Path, images: Sequence[Path], ignored: Sequence[str]) -> Path | None:
    """Return a table in a folder of which most rows name one of the images, with or without its suffix; None for none.

    Args:
        folder: of the table.
        images: the files of the images.
        ignored: names of tables that are not looked at.
    """
    found = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in TEXT_SUFFIXES]
    tables = [path for path in found if path.name not in ignored and not path.name.startswith(".") and path.is_file()]
    names = {name for path in images for name in (path.name, path.stem)} if tables else set()
    return next((path for path in tables if _names_most(path, names)), None)


def _names_most(table: Path, names: set[str]) -> bool:
    """Return whether more than half of the first rows have one of these names."""
    with table.open("rb") as file:
        rows = file.read(_BYTES).decode(errors="replace").splitlines()[1:_ROWS]
    known = sum(any(PurePath(value.strip()).name in names for value in _SEPARATORS.split(row)) for row in rows)
    return 2 * known > len(rows)
