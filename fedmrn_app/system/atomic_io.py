"""Writes that leave the old or the new file, never a part, even if the process or the machine stops meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

NO_SPACE = "no space left on device"
_PROBE_BYTES = 1 << 16
_FULL = (errno.ENOSPC, errno.EDQUOT)


def full_disk(*folders: Path) -> Path | None:
    """Return the first of some folders into which not even 64 KiB can be written for lack of space; None if all have.

    A quota counts as a full disk.
    """
    for folder in folders:
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(_PROBE_BYTES))
                file.flush()
        except OSError as error:
            if error.errno in _FULL:
                return folder
    return None


def os_reason(error: OSError, place: object = "") -> str:
    """Return an error of the operating system in one line that names the file, or `place` where it names none."""
    named = error.filename or place
    if error.errno in _FULL:
        return f"{NO_SPACE}: {named}; make room, and resume the run"
    return f"{named}: {error.strerror or error}" if named else str(error.strerror or error)


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file and return when it is on the disk; its permissions follow the umask.

    Raises:
        OSError: the file cannot be written; it names the file.
    """
    replace_durably(path, lambda file: file.write(data))


def replace_durably(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Replace a file by what `write` writes into the file that it is given, as `write_durably` does.

    Raises:
        OSError: the file cannot be written; it names the file.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)  # on a full disk this makes room for the reason
        raise OSError(error.errno, error.strerror, str(path)) from error
    sync_folder(path.parent)


def keep_before(path: Path, before: Path) -> None:
    """Make `before` a link to the present content of `path`, which stays in place; without `path`, do nothing."""
    if path.exists():
        link_as(path, before, "partial")


def link_as(path: Path, place: Path, mark: str) -> None:
    """Make `place` a link to the content of `path`, or a copy where the file system has no links.

    Args:
        path: an existing file.
        place: a path, replaced if it exists.
        mark: suffix of the temporary name; processes that do this at the same time need different ones.

    Raises:
        OSError: the file cannot be written.
    """
    link = place.with_name(f"{place.name}.{mark}")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except OSError:  # a file system without links
        link.write_bytes(path.read_bytes())
    link.replace(place)


def sync_folder(folder: Path) -> None:
    """Write a folder's directory entries to the disk, where the system supports it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
