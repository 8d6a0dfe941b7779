"""What a device knows of its federation: its own key, the operator's key that its bundle pins, and the newest roster.

The server passes rosters on, so that devices may come and go without new bundles for the others. The operator's
signature decides, and the serial number of the newest roster that this device has seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedmrn_app.errors import PayloadError
from fedmrn_app.exchange.client_storage import StateError, state_root, unwritable, write_private
from fedmrn_app.secure.roster import BUNDLE_PATH, OPERATOR, ROSTER, Identity, Roster

_KEY = "device.key"


def device_identity(node_config: Mapping[str, object], about: str, sent: bytes | None) -> Identity | None:
    """Return the identity of this device; None where its bundle pins no operator, as in a simulation.

    Args:
        node_config: the owner's configuration.
        about: what keys of a round are for.
        sent: the roster that the server has sent; None if it has sent none.

    Raises:
        PayloadError: the roster that was sent is not signed by the operator, or is older than one of before.
        StateError: a file of the device cannot be read, or the roster cannot be kept.
    """
    folder = node_config.get(BUNDLE_PATH)
    if folder is None or not (Path(str(folder)) / OPERATOR).is_file():
        return None
    bundle = Path(str(folder))
    try:
        pinned = (bundle / OPERATOR).read_bytes()
        operator, key = load_ssh_public_key(pinned), load_ssh_private_key((bundle / _KEY).read_bytes(), None)
    except (OSError, ValueError) as error:
        reason = f"{bundle}: a key cannot be read: {type(error).__name__}: {error}; copy the bundle again"
        raise StateError(reason, code="unreadable", value=str(bundle)) from None
    if not isinstance(operator, Ed25519PublicKey) or not isinstance(key, EllipticCurvePrivateKey):
        raise StateError(f"{bundle}: a key is of another kind; copy the bundle again", code="unreadable")
    kept = state_root(node_config) / f"roster-{hashlib.sha256(pinned).hexdigest()[:16]}"
    return Identity(key, about, _newest(operator, (bundle / ROSTER, kept), sent, kept))


def _newest(operator: Ed25519PublicKey, files: tuple[Path, ...], sent: bytes | None, kept: Path) -> Roster | None:
    """Return the newest roster, and keep it if it was sent now; refuse one that is older than those of before."""
    known: Roster | None = None
    for file in files:
        if file.is_file():
            found = Roster.read(file.read_bytes(), operator)
            known = found if known is None or found.serial > known.serial else known
    if sent is None:
        return known
    roster = Roster.read(sent, operator)
    if known is not None and roster.serial < known.serial:
        reason = f"the server has sent the roster {roster.serial}, and this device knows the later one {known.serial}"
        raise PayloadError(reason, code="secure-roster", value=roster.serial)
    if known is None or roster.serial > known.serial:
        try:
            write_private(kept, sent, durably=True)
        except OSError as error:
            raise unwritable(kept.parent, error) from None
    return roster
