"""What clients keep on their disk between rounds, so that it outlives their processes.

Residuals: a server that resumes after a crash may ask again for a round that a client has trained already. So a client
keeps the residuals of its last rounds, and continues from the latest one of a round before the one that is asked. What
else training keeps from round to round, such as Adam's moments, is stored in the same way.

Versions of the global model: all clients of a round are sent the same version. So a version lies on the disk once, and
each client that holds it has a link to it, which takes no room. A lost or damaged version is sent whole again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedmrn_app.environment import STATE_FOLDER, read_variable
from fedmrn_app.errors import FedMRNError
from fedmrn_app.federation.versions import Version, most_versions
from fedmrn_app.layout import Float32Array
from fedmrn_app.system.atomic_io import link_as
from fedmrn_app.wire.lattice import Lattice

_PER_FOLDER = 1000  # clients; a folder with the files of many more is slow to search
_KEPT_ROUNDS = 3  # the round that may be asked again, and the one before, should the server lose its latest state
_MAX_AGE = 90 * 86400  # seconds since a run's last round here, after which the run is deleted
Purpose = Literal["train", "evaluate"]  # what a client is asked for, Flower's type of the message
_DTYPES = {"steps": "<f4"}  # of the parts of a lattice; the others are named by their dtypes


class StateError(FedMRNError):
    """What this client keeps of a run cannot be read or written."""


def state_folder() -> Path:
    """Return `$FEDMRN_STATE`, else `$XDG_STATE_HOME/fedmrn`, else `~/.local/state/fedmrn`."""
    if folder := read_variable(STATE_FOLDER):
        return Path(folder)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fedmrn"


def state_root(node_config: Mapping[str, object]) -> Path:
    """Return the folder of what a node keeps: `state-path` in its configuration, else that of `state_folder`."""
    root = node_config.get("state-path")
    return state_folder() if root is None else Path(str(root))


def client_folder(folder: Path, client: int) -> Path:
    """Return the folder of a client's files: the run's folder for the first 1000 clients, then folders in it."""
    return folder if client < _PER_FOLDER else folder / f"clients-{client // _PER_FOLDER}"


def unwritable(folder: Path, error: OSError) -> StateError:
    """Return the error that a run's folder cannot be written."""
    reason = f"{folder}: cannot be written ({error.strerror}); say state-path=FOLDER in the node's configuration"
    return StateError(reason, code="unwritable", key="state-path", value=folder)


class Residuals:
    """The residuals of error feedback, or what else training keeps, of a run's clients on this device.

    Attributes:
        folder: of the run.
    """

    def __init__(self, root: Path, run: str) -> None:
        if not re.fullmatch(r"[0-9a-f]{1,64}", run):  # it comes from the server
            raise StateError(f"run {run[:80]!r}: is no name of a run", code="name", key="run", value=run)
        self.folder = root / run

    def read(self, client: int, server_round: int) -> Float32Array | None:
        """Return the latest residual of a client from before this round, float32; None if there is none.

        Raises:
            StateError: its file is damaged.
        """
        before = [number for number in self._rounds(client) if number < server_round]
        if not before:
            return None
        path = self._path(client, before[-1])
        data = path.read_bytes()
        if len(data) % 4 or hashlib.sha256(data[32:]).digest() != data[:32]:
            reason = f"{path}: is damaged; delete it, and the client continues from the round before it"
            raise StateError(reason, code="damaged", value=path)
        return np.frombuffer(data[32:], "<f4").astype(np.float32)

    def latest(self, last: int) -> dict[int, int]:
        """Return the latest round, up to `last`, of which each client has a residual."""
        found: dict[int, int] = {}
        for path in self.folder.glob("**/client-*-round-*.residual"):
            client, number = (int(word) for word in path.stem.split("-")[1::2])
            if number <= last:
                found[client] = max(number, found.get(client, 0))
        return found

    def write(self, client: int, server_round: int, residual: Float32Array) -> None:
        """Write a client's residual after a round, float32, durably.

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
            for number in self._rounds(client)[:-_KEPT_ROUNDS]:
                self._path(client, number).unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(self.folder, error) from None

    def begin(self) -> None:
        """Make the folder of a new run, and delete old runs.

        Raises:
            StateError: it cannot be made.
        """
        if self.folder.is_dir():
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # another node may have begun
        except OSError as error:
            raise unwritable(self.folder, error) from None
        for other in self.folder.parent.iterdir():
            folders = [
                other,
                *(folder for folder in other.glob("*") if folder.is_dir()),
            ]  # new files change their times
            if time.time() - max(folder.stat().st_mtime for folder in folders) > _MAX_AGE:
                shutil.rmtree(other, ignore_errors=True)

    def _path(self, client: int, server_round: int) -> Path:
        return client_folder(self.folder, client) / f"client-{client}-round-{server_round}.residual"

    def _rounds(self, client: int) -> list[int]:
        """Return the rounds that have a residual, ascending."""
        found = client_folder(self.folder, client).glob(f"client-{client}-round-*.residual")
        return sorted(int(path.stem.rpartition("-")[2]) for path in found)


class Secrets:
    """The secrets of a run's clients on this device, from the first to the last message of one secure sum.

    Attributes:
        folder: of the run.
        purpose: what the sum is for.
    """

    def __init__(self, folder: Path, purpose: Purpose = "train") -> None:
        self.folder = folder
        self.purpose = purpose

    def path(self, client: int) -> Path:
        """Return the file of a client."""
        suffix = "" if self.purpose == "train" else f"-{self.purpose}"
        return client_folder(self.folder, client) / f"client-{client}{suffix}.secret"

    @contextlib.contextmanager
    def locked(self, client: int) -> Iterator[None]:
        """Let one message of a client at a time be accepted; a SuperNode may start several at once.

        Raises:
            StateError: the lock cannot be written.
        """
        path = self.path(client)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with FileLock(f"{path}.lock", mode=0o600):
                yield
        except OSError as error:
            raise unwritable(self.folder, error) from None

    def revealed(self, client: int) -> int:
        """Return the last round in which a client has revealed shares; 0 for none."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int(self._ledger(client).read_text())
        return 0

    def note_revealed(self, client: int, server_round: int) -> None:
        """Record, before it does, that a client reveals shares in a round.

        Raises:
            StateError: it cannot be written, so the client must not answer.
        """
        try:
            write_private(self._ledger(client), str(server_round).encode())
        except OSError as error:
            raise unwritable(self.folder, error) from None

    def most_told(self, client: int, least: int) -> int:
        """Return the largest least number of clients of a sum that the run has told this client so far, and keep it.

        Raises:
            StateError: it cannot be written, so the client must not answer.
        """
        told, path = 0, self.path(client).with_suffix(".least")
        with contextlib.suppress(FileNotFoundError, ValueError):
            told = int(path.read_text())
        if told >= least:
            return told
        try:
            write_private(path, str(least).encode())
        except OSError as error:
            raise unwritable(self.folder, error) from None
        return least

    def _ledger(self, client: int) -> Path:
        return self.path(client).with_suffix(".revealed")

    def read(self, client: int) -> bytes | None:
        """Return what a client keeps; None if it keeps nothing."""
        with contextlib.suppress(FileNotFoundError):
            return self.path(client).read_bytes()
        return None

    def write(self, client: int, secrets: bytes | None) -> None:
        """Keep a client's secrets in a file that only its owner can read; None deletes them.

        Raises:
            StateError: they cannot be written, so the client must not answer.
        """
        path = self.path(client)
        try:
            if secrets is None:
                path.unlink(missing_ok=True)
                return
            write_private(path, secrets)
        except OSError as error:
            raise unwritable(self.folder, error) from None


class KeptVersions:
    """The versions of the global model that a run's clients hold on this device.

    Attributes:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, client: int) -> Path:
        """Return the file of a client."""
        return client_folder(self.folder, client) / f"client-{client}.version"

    def read(self, client: int) -> Version | None:
        """Return the version that a client holds, None if there is none; its reader compares the checksum."""
        try:
            stored = load(self.path(client).read_bytes())
            number = int(stored.pop("round")[0])
            return Version(number, Lattice.from_kept({name: values.tobytes() for name, values in stored.items()}))
        except (OSError, SafetensorError, KeyError, IndexError, ValueError):
            return None

    def write(self, client: int, version: Version) -> None:
        """Keep a client's version; without effect where it cannot be written."""
        with contextlib.suppress(OSError):
            shared = self.folder / "versions" / f"round-{version.server_round}-{version.lattice.checksum:08x}"
            first = not shared.is_file()
            if first:
                _write_shared(shared, version)
            path = self.path(client)
            path.parent.mkdir(parents=True, exist_ok=True)
            link_as(shared, path, str(os.getpid()))
            if first:
                _delete_older(shared, version)


def write_private(path: Path, data: bytes, *, durably: bool = False) -> None:
    """Replace a file that only its owner can read; other processes may write the same file now.

    Args:
        path: the file.
        data: its content.
        durably: wait until the content is on the disk.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, partial = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        if durably:
            file.flush()
            os.fsync(file.fileno())
    os.replace(partial, path)


def _write_shared(path: Path, version: Version) -> None:
    kept = {name: np.frombuffer(data, _DTYPES.get(name, name)) for name, data in version.lattice.kept().items()}
    write_private(path, save({"round": np.array([version.server_round]), **kept}))


def _delete_older(path: Path, version: Version) -> None:
    """Delete older versions that no client has a link to, and those that the server no longer keeps."""
    rounds = sorted((int(other.name.split("-")[1]), other) for other in path.parent.glob("round-*"))
    linked = []
    for other in (other for number, other in rounds if number < version.server_round):
        if other.stat().st_nlink > 1:
            linked.append(other)
        else:
            other.unlink(missing_ok=True)
    for other in linked[: max(0, len(linked) + 1 - most_versions(version.lattice.counts.size))]:
        os.truncate(other, 0)  # through all links
        other.unlink(missing_ok=True)
