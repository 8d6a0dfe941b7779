"""The operator's records of real devices: which clients the key of a node stands for, and how many samples they have.

Flower lets a node in by its registered key. The records say what that key is worth, so that nothing depends on what a
device says about itself.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedmrn_app.errors import ConfigError
from fedmrn_app.secure.roster import ROSTER

SETTINGS = "federation.json"  # in the folder of a federation, see `deploy/folder.py`
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True)
class DeviceRecord:
    """What the operator knows of a device.

    Attributes:
        name: of the device.
        number: of its first client.
        devices: number of devices that the clients of a run are divided by, including those that have left.
        samples: the confirmed number of samples of each of its clients; None if the operator has confirmed none.
    """

    name: str
    number: int
    devices: int
    samples: int | None

    def clients(self, clients: int) -> range:
        """Return the clients that the device may host: its number, and every `devices`-th client after it."""
        return range(self.number, clients, self.devices)


class DeviceRecords:
    """The records in the file of a federation, which is read again when it has changed.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ConfigError: it cannot be read.
        """
        self.path = path
        self._changed = 0
        try:
            self._read()
        except _UNREADABLE as error:
            reason = f"cannot be read ({type(error).__name__}: {error}); the run needs it to know its devices"
            raise ConfigError(f"{path}: {reason}", code="unreadable", value=str(path)) from None

    def find(self, node: int) -> DeviceRecord | None:
        """Return the device whose registered key a node has; None if it is none of this federation."""
        with contextlib.suppress(*_UNREADABLE):  # what was read before stays valid
            self._read()
        return self._by_node.get(node)

    def samples(self, clients: int) -> Mapping[int, int] | None:
        """Return the confirmed number of samples of each client; None unless all are confirmed that have a device."""
        found = {c: one.samples for one in self._all for c in one.clients(clients) if one.samples is not None}
        return found if found and len(found) == clients - len(self.left(clients)) else None

    def left(self, clients: int) -> set[int]:
        """Return the clients of a run whose device has left the federation."""
        with contextlib.suppress(*_UNREADABLE):
            self._read()
        numbers = {record.number for record in self._all}
        return {client for client in range(clients) if client % max(1, self._slots) not in numbers}

    def roster(self) -> bytes | None:
        """Return the signed roster of the federation as it is now; None if it has none."""
        with contextlib.suppress(OSError):
            return self.path.with_name(ROSTER).read_bytes()
        return None

    def _read(self) -> None:
        changed = self.path.stat().st_mtime_ns
        if changed == self._changed:
            return
        values = json.loads(self.path.read_text())
        devices, slots = values["devices"], int(values.get("slots", len(values["devices"])))
        records = {
            name: DeviceRecord(name, int(device["number"]), slots, device.get("samples"))
            for name, device in devices.items()
        }
        self._all, self._slots = list(records.values()), slots
        self._by_node = {device["node_id"]: records[name] for name, device in devices.items()}
        self._changed = changed
