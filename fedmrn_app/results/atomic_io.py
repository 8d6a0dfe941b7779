"""Files that are whole or not there at all, whatever ends the process or the machine while they are written."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file, and return when it is on the disk for good; it has the umask's rights.

    Raises:
        OSError: it cannot be written.
    """
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)


def keep_before(path: Path, before: Path) -> None:
    """Let `before` be what `path` is now, which stays where it is; nothing where there is none."""
    if path.exists():
        link_as(path, before, "partial")


def link_as(path: Path, place: Path, mark: str) -> None:
    """Let `place` be what `path` is now, by a link where the file system has them; never half of it.

    Args:
        path: a file.
        place: a file, or none yet.
        mark: ends the name under which it is made, and tells processes apart that do so at the same time.

    Raises:
        OSError: it cannot be written.
    """
    link = place.with_name(f"{place.name}.{mark}")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except OSError:  # a file system without links
        link.write_bytes(path.read_bytes())
    link.replace(place)


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk; without effect where that cannot be asked for."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
