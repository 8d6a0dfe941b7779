"""What clients keep on their disk between rounds, so that it outlives their processes: residuals of error feedback.

A server that goes on after a crash may ask for a round again that a client has trained already. So a client keeps the
residuals of its last rounds, and goes on from the latest one of a round before the one that is asked.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from pathlib import Path

import numpy as np

from fedmrn_app.environment import STATE_FOLDER, read_variable
from fedmrn_app.errors import FedMRNError
from fedmrn_app.layout import Float32Array

_PER_FOLDER = 1000  # clients: a folder of all files of many more is slow to look through
_KEPT = 3  # rounds: the one that is asked again, and the one before where the server has lost its latest state
_FORGOTTEN_AFTER = 90 * 86400  # seconds since a run's last round here


class StateError(FedMRNError):
    """What this client keeps of a run cannot be read or written."""


def state_folder() -> Path:
    """`$FEDMRN_STATE`, else `$XDG_STATE_HOME/fedmrn`, else `~/.local/state/fedmrn`."""
    if folder := read_variable(STATE_FOLDER):
        return Path(folder)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fedmrn"


def client_folder(folder: Path, client: int) -> Path:
    """Where a client's files lie in the folder of a run: in itself for the first ones, below it for further ones."""
    return folder if client < _PER_FOLDER else folder / f"clients-{client // _PER_FOLDER}"


class Residuals:
    """The residuals of a run's clients on this device.

    Attributes:
        folder: of the run.
    """

    def __init__(self, root: Path, run: str) -> None:
        if not re.fullmatch(r"[0-9a-f]{1,64}", run):  # it comes from the server
            raise StateError(f"run {run[:80]!r}: is no name of a run")
        self.folder = root / run

    def read(self, client: int, server_round: int) -> Float32Array | None:
        """The latest residual of a client, float32 (d,), of a round before this one; None if there is none.

        Raises:
            StateError: its file is damaged.
        """
        before = [number for number in self._rounds(client) if number < server_round]
        if not before:
            return None
        path = self._path(client, before[-1])
        data = path.read_bytes()
        if len(data) % 4 or hashlib.sha256(data[32:]).digest() != data[:32]:
            raise StateError(f"{path}: is damaged; delete it, and the client goes on from the round before it")
        return np.frombuffer(data[32:], "<f4").astype(np.float32)

    def write(self, client: int, server_round: int, residual: Float32Array) -> None:
        """Keep a client's residual, float32 (d,), after a round, for good.

        Raises:
            StateError: it cannot be written.
        """
        self.begin()
        data = residual.astype("<f4", copy=False).tobytes()
        try:
            path = self._path(client, server_round)
            path.parent.mkdir(exist_ok=True)
            partial = path.with_suffix(".partial")
            with partial.open("wb") as file:
                file.write(hashlib.sha256(data).digest() + data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            rounds = self._rounds(client)
            for number in rounds[:-_KEPT]:
                self._path(client, number).unlink(missing_ok=True)
        except OSError as error:
            raise self._unwritable(error) from None

    def begin(self) -> None:
        """Make the folder of a run that is new here, and forget runs of long ago.

        Raises:
            StateError: it cannot be made.
        """
        if self.folder.is_dir():
            return
        try:
            self.folder.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise self._unwritable(error) from None
        for other in self.folder.parent.iterdir():
            folders = [other, *(folder for folder in other.glob("*") if folder.is_dir())]  # changed as files are put in
            newest = max(folder.stat().st_mtime for folder in folders)
            if time.time() - newest > _FORGOTTEN_AFTER:
                shutil.rmtree(other, ignore_errors=True)

    def _unwritable(self, error: OSError) -> StateError:
        return StateError(
            f"{self.folder}: cannot be written ({error.strerror}); say state-path=FOLDER in the node's configuration"
        )

    def _path(self, client: int, server_round: int) -> Path:
        return client_folder(self.folder, client) / f"client-{client}-round-{server_round}.residual"

    def _rounds(self, client: int) -> list[int]:
        """The rounds of which there is a residual, ascending."""
        found = client_folder(self.folder, client).glob(f"client-{client}-round-*.residual")
        return sorted(int(path.stem.rpartition("-")[2]) for path in found)
