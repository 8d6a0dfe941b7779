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
SIGNED_HEADERS = (KEY_HEADER, TIMESTAMP_HEADER, FLEET_HTTP_SIGNATURE_HEADER)


class Keys:
    """The owners of keys; devices' keys may be replaced while the gate is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: dict[bytes, str] = {}
        self._read: tuple[int, int] | None = None

    def name(self, header: str) -> str | None:
        """Return the device that sends a key, None for an unknown key. Files are read only after a change."""
        try:
            key = base64.b64decode(header, validate=True)
        except ValueError:
            return None
        settings = (self.path / SETTINGS).stat()
        stamp = settings.st_mtime_ns, settings.st_size
        if stamp != self._read:
            federation = load(self.path)
            self._names = {public_pem(federation.public_key(name)): name for name in federation.devices}
            self._read = stamp
        return self._names.get(key)

    def refusal(self, header: str) -> str:
        """Return why the SuperLink refuses a device."""
        name = self.name(header)
        if name is None:
            return "its key is none of this federation's, or was replaced by a new one"
        device = load(self.path).devices[name]
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
