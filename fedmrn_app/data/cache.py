"""Arrays on disk, made once and mapped from there by every process.

They lie under `$FEDMRN_CACHE`, else `$XDG_CACHE_HOME/fedmrn`, else `~/.cache/fedmrn`.
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

from fedmrn_app.environment import CACHE, read_variable
from fedmrn_app.errors import DataError

Arrays = Mapping[str, NDArray[Any]]


def cached_arrays(
    name: str, source: object, make: Callable[[], Arrays], report: Callable[[str], None] | None
) -> Arrays:
    """Return arrays by their names, mapped read-only; make them when they are not there. Many processes may call it.

    Args:
        name: what the arrays are of, the start of their folder's name.
        source: whatever they depend on; another `repr` of it is another folder.
        make: reads the source.
        report: is told in a line before `make` is called.

    Raises:
        DataError: the cache cannot be written, or `make` raises it.
    """
    key = hashlib.sha256(repr(source).encode()).hexdigest()[:12]
    folder = _cache_folder() / f"{name}-{key}"
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):
                if not folder.is_dir():
                    if report is not None:
                        report(f"reading {name} once into {folder}")
                    _write(folder, make())
        except PermissionError as error:
            raise DataError(
                f"{folder}: cannot be written ({error.strerror}); set FEDMRN_CACHE to a folder that can"
            ) from None
    return {path.stem: np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))}


def file_stamp(path: Path) -> tuple[object, ...]:
    """What changes when a file, or any file below a folder, does, as far as can be seen without reading it."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return (str(path), *((str(f.relative_to(path)), f.stat().st_size, f.stat().st_mtime_ns) for f in files))


def _cache_folder() -> Path:
    if folder := read_variable(CACHE):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedmrn"


def _write(folder: Path, arrays: Arrays) -> None:
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        for name, array in arrays.items():
            np.save(partial / f"{name}.npy", array)
        partial.chmod(0o755)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
