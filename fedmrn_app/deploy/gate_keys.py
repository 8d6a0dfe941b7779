"""The keys of devices at the gate: whose key has signed a request, and why a device is refused."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

from fedmrn_app.deploy.certificates import public_pem
from fedmrn_app.deploy.folder import load
from fedmrn_app.flower.device_records import SETTINGS

KEY_HEADER = FLEET_HTTP_PUBLIC_KEY_HEADER  # base64 of the key's PEM
NO_KEY = "its key is none of this federation's, or was replaced by a new one"
SIGNED_HEADERS = (KEY_HEADER, TIMESTAMP_HEADER, FLEET_HTTP_SIGNATURE_HEADER)


class Keys:
    """The owners of keys; devices' keys may be replaced while the gate is open. A key of two devices is nobody's.

    Attributes:
        path: of the federation's folder.
        revoked: the devices whose keys were revoked, as of the last call of `name`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.revoked: set[str] = set()
        self._names: dict[bytes, list[str]] = {}
        self._read: tuple[int, int] | None = None

    def name(self, header: str) -> str | None:
        """Return the device that sends a key, None for an unknown key. Files are read only after a change."""
        owners = self._owners(header)
        return owners[0] if len(owners) == 1 else None

    def _owners(self, header: str) -> list[str]:
        try:
            key = base64.b64decode(header, validate=True)
        except ValueError:
            return []
        settings = (self.path / SETTINGS).stat()
        stamp = settings.st_mtime_ns, settings.st_size
        if stamp != self._read:
            federation = load(self.path)
            self._names = {}
            for name in federation.devices:
                self._names.setdefault(public_pem(federation.public_key(name)), []).append(name)
            self.revoked = {name for name, device in federation.devices.items() if device.revoked}
            self._read = stamp
        return self._names.get(key, [])

    def refusal(self, header: str) -> str:
        """Return why a device is refused, by the gate or by the SuperLink."""
        owners = self._owners(header)
        if len(owners) > 1:
            return f"{' and '.join(owners)} have the same key; `fedmrn-deploy doctor` on the server says what to do"
        if not owners:
            return NO_KEY
        device = load(self.path).devices[owners[0]]
        if device.node_id is None:
            return "its key was revoked" if device.revoked else "its key is not registered yet"
        return "it is connected already, or was until a minute ago and is let in after that"


def timely(age: float | None) -> bool:
    """Return whether a request was signed now, as Flower defines it; `age` is that of `signed_age`."""
    return age is not None and -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE


def signed_age(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds ago, by the device's clock, its key has signed a request; None if it has not."""
    try:
        key, stamp, signature = (headers[name] for name in SIGNED_HEADERS)
        age = (now() - datetime.fromisoformat(stamp)).total_seconds()
        public = bytes_to_public_key(base64.b64decode(key, validate=True))
        valid = verify_signature(public, stamp.encode("ascii"), base64.b64decode(signature, validate=True))
    except (KeyError, ValueError, TypeError):
        return None
    return age if valid else None
