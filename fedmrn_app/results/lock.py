"""One process at a time works in a run's folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fedmrn_app.errors import RunError


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Hold a folder's lock of this name, which ends with the process; the folder is made.

    Raises:
        RunError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f".{name}.lock", mode=0o644)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise RunError(f"{folder}: another {name} is at work in it; wait for it, or take another folder") from None
    try:
        yield
    finally:
        lock.release()
