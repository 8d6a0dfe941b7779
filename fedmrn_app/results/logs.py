"""Limits on the size of logs that other processes write."""

from __future__ import annotations

import os
from pathlib import Path

MAX_BYTES = 8 << 20  # of a log, and of its older part


def shorten(path: Path, max_bytes: int = MAX_BYTES) -> None:
    """Move a log's content to the file with the suffix `.1` if it is longer than `max_bytes`.

    The writer must append to the log and continues in the same file. A line written during the move may be lost.
    """
    if not path.is_file() or path.stat().st_size <= max_bytes:
        return
    before = path.with_name(path.name + ".1")
    with path.open("rb") as log, before.open("wb") as older:
        log.seek(-max_bytes, os.SEEK_END)
        older.write(log.read(max_bytes))
    os.truncate(path, 0)
