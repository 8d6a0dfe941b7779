"""The files below a folder, without what editors, notebooks and archives leave beside them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

HIDDEN = (".", "__")  # so begin names such as .ipynb_checkpoints, .Trash-1000 and __MACOSX


def visible_files(folder: Path) -> Iterator[Path]:
    """Return the files below a folder, in no order, without those that are hidden or in a hidden folder.

    Raises:
        OSError: a folder cannot be read, or is a file.
    """

    def stop(error: OSError) -> None:
        raise error

    for place, folders, files in os.walk(folder, onerror=stop):
        folders[:] = [name for name in folders if not name.startswith(HIDDEN)]
        yield from (Path(place, name) for name in files if not name.startswith("."))
