"""Arrays on disk, which one process makes and every process maps.

The folder is `$FEDMRN_CACHE`, otherwise `$XDG_CACHE_HOME/fedmrn`, otherwise `~/.cache/fedmrn`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from fedmrn_app.data.samples import Report
from fedmrn_app.environment import CACHE, read_variable
from fedmrn_app.errors import DataError

Arrays = Mapping[str, NDArray[Any]]


def cached_arrays(
    name: str, source: object, make: Callable[[], Arrays], report: Report | None, *, private: bool = False
) -> Arrays:
    """Return arrays by name, mapped read-only. One of the processes that call this makes them if they are missing.

    Args:
        name: what the arrays hold; the folder's name begins with it.
        source: everything that the arrays depend on; its `repr` selects the folder.
        make: reads the source.
        report: receives a line before `make` is called.
        private: whether the arrays are a copy of somebody's own rows, which nobody else may read.

    Raises:
        DataError: the cache cannot be written, or `make` raises it.
    """
    key = hashlib.sha256(repr(source).encode()).hexdigest()[:12]
    folder = _cache_folder() / f"{name}-{key}"
    try:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):
                if not folder.is_dir():
                    if report is not None:
                        report(f"reading {name} once into {folder}")
                    _write(folder, make(), 0o700 if private else 0o755)
        if private and folder.stat().st_mode & 0o077:
            folder.chmod(0o700)  # an older version has let others read it
        return {path.stem: np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))}
    except OSError as error:  # no permission, a full disk
        problem = f"cannot be written ({error.strerror or error}); set FEDMRN_CACHE to a folder that can"
        raise DataError(f"{folder}: {problem}", code="cache", key=CACHE, value=str(folder)) from error


def _cache_folder() -> Path:
    if folder := read_variable(CACHE):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedmrn"


def _write(folder: Path, arrays: Arrays, mode: int) -> None:
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        for name, array in arrays.items():
            np.save(partial / f"{name}.npy", array)
        for file in partial.iterdir():
            file.chmod(mode & 0o666)
        partial.chmod(mode)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
