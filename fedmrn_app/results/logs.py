"""Logs that others write stay short."""

from __future__ import annotations

import os
from pathlib import Path

MOST_BYTES = 8 << 20  # of a log, and of the part before it


def shorten(path: Path, most: int = MOST_BYTES) -> None:
    """Move what is in a log to the file with `.1` behind its name, if that is more than `most` bytes.

    Whoever writes to it must append, and goes on in the same file; a line that comes in between may be lost.
    """
    if not path.is_file() or path.stat().st_size <= most:
        return
    before = path.with_name(path.name + ".1")
    with path.open("rb") as log, before.open("wb") as older:
        log.seek(-most, os.SEEK_END)
        older.write(log.read(most))
    os.truncate(path, 0)
