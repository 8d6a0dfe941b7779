"""What clients keep on their disk of the global model, so that they need be sent only what has changed since.

All clients of a round are sent the same version. So a round's version lies on the disk once, and each client that holds
it has a link to it, which takes no room of its own. What is lost or damaged is sent whole again.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedmrn_app.federation.download import Version
from fedmrn_app.federation.versions import most_versions
from fedmrn_app.flower.device_storage import client_folder
from fedmrn_app.results.atomic_io import link_as
from fedmrn_app.wire.lattice import Lattice

_TYPES = {"steps": "<f4"}  # of what a grid keeps; the others are named by their types


class KeptVersions:
    """The versions of the global model that a run's clients hold on this device."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, client: int) -> Version | None:
        """The version that a client holds, None if there is none; who reads it compares the checksum."""
        try:
            stored = load(self.path(client).read_bytes())
            number = int(stored.pop("round")[0])
            return Version(number, Lattice.from_kept({name: values.tobytes() for name, values in stored.items()}))
        except (OSError, SafetensorError, KeyError, IndexError, ValueError):
            return None

    def write(self, client: int, version: Version) -> None:
        """Keep it; without effect where it cannot be written."""
        with contextlib.suppress(OSError):
            shared = self.folder / "versions" / f"round-{version.server_round}-{version.grid.checksum:08x}"
            first = not shared.is_file()
            if first:
                _write_shared(shared, version)
            path = self.path(client)
            path.parent.mkdir(parents=True, exist_ok=True)
            link_as(shared, path, str(os.getpid()))
            if first:
                _forget(shared, version)

    def path(self, client: int) -> Path:
        """The file of a client."""
        return client_folder(self.folder, client) / f"client-{client}.version"


def _write_shared(path: Path, version: Version) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = {name: np.frombuffer(data, _TYPES.get(name, name)) for name, data in version.grid.kept().items()}
    data = save({"round": np.array([version.server_round]), **kept})
    descriptor, partial = tempfile.mkstemp(dir=path.parent)  # of this process alone: others may write the same
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.replace(partial, path)


def _forget(path: Path, version: Version) -> None:
    """Remove older versions that no client has a link to, and those that the server has forgotten."""
    rounds = sorted((int(other.name.split("-")[1]), other) for other in path.parent.glob("round-*"))
    linked = []
    for other in (other for number, other in rounds if number < version.server_round):
        if other.stat().st_nlink > 1:
            linked.append(other)
        else:
            other.unlink(missing_ok=True)
    for other in linked[: max(0, len(linked) + 1 - most_versions(version.grid.counts.size))]:
        os.truncate(other, 0)  # for all who have a link to it
        other.unlink(missing_ok=True)
