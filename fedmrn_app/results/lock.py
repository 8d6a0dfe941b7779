"""Locks that let one process at a time work in a run's folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fedmrn_app.errors import RunError


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock of this name in a folder, which is created if necessary; the process's end releases it.

    Raises:
        RunError: another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f".{name}.lock", mode=0o644)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        message = f"{folder}: another {name} is at work in it; wait for it, or use another folder"
        raise RunError(message, code="locked", value=str(folder)) from None
    try:
        yield
    finally:
        lock.release()
