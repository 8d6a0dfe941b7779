"""The folder of a command: it must be one that can be written, and a refused command leaves nothing in it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedmrn_app.errors import ConfigError
from fedmrn_app.results.data_notes import DATA

_TRACES = {".hydra", ".fedmrn.lock", "multirun.yaml", "run.log", DATA}  # what a command writes before a run begins


@contextmanager
def claimed(folder: Path, key: str) -> Iterator[None]:
    """Make a folder; on leaving, remove what this has made and what Hydra has written if no run has begun in it.

    Raises:
        ConfigError: the folder cannot be made or written.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    before = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            reason = f"cannot be written ({error.strerror or error}); name another folder"
            raise ConfigError(f"{key}={folder}: {reason}", code="folder", key=key, value=str(folder)) from error
        yield
    finally:
        with suppress(OSError):
            if (new := {path.name for path in folder.iterdir()} - before) <= _TRACES:
                for path in (folder / name for name in new):
                    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
                for path in made:
                    path.rmdir()  # fails where there is something else
