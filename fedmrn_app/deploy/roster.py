"""Writes a federation's roster: the public keys of its devices, signed with the operator's key.

The key lies in the federation's folder, where each command that changes devices signs. Where it is kept elsewhere,
those commands write `roster.unsigned`, and `fedmrn-deploy sign` signs it there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedmrn_app.deploy import certificates
from fedmrn_app.deploy.certificates import write_private
from fedmrn_app.errors import ConfigError, PayloadError
from fedmrn_app.secure.roster import OPERATOR, ROSTER, Roster, point

OPERATOR_KEY, UNSIGNED = "operator.key", "roster.unsigned"
_PINNED = (OPERATOR, ROSTER)  # files that each bundle has


def make_operator(folder: Path) -> None:
    """Write a new key of the operator into a federation's folder, for devices to pin."""
    key = Ed25519PrivateKey.generate()
    write_private(folder / OPERATOR_KEY, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (folder / OPERATOR).write_bytes(public + b"\n")


def update_roster(folder: Path, slots: int, devices: Mapping[int, Path], *, again: bool = False) -> None:
    """Write the roster of these devices, if it is another one than before, and give it to all bundles.

    Serial numbers are times, so that they also grow where an older backup was restored.

    Args:
        folder: of the federation; without effect where it has no operator's key.
        slots: the number of client numbers given out so far.
        devices: bundles of the devices that take part, by their numbers.
        again: whether to write it even if it is the one of before.
    """
    if not (folder / OPERATOR).is_file():
        return
    before = read_known(folder)
    keys = {number: device_point(bundle, before, number) for number, bundle in devices.items()}
    wanted = {number: key for number, key in keys.items() if key is not None}
    file, unsigned = folder / ROSTER, folder / UNSIGNED
    if again or before is None or (before.slots, dict(before.keys)) != (slots, wanted):
        known = [before.serial] if before is not None else []
        if unsigned.is_file():
            known.append(Roster.read(unsigned.read_bytes(), None).serial)
        roster = Roster(max([int(time.time()), *(serial + 1 for serial in known)]), slots, wanted)
        if (folder / OPERATOR_KEY).is_file():
            write_private(file, roster.signed(read_operator(folder / OPERATOR_KEY)))
            unsigned.unlink(missing_ok=True)
        elif not _same(unsigned, roster):
            write_private(unsigned, roster.statement() + b"\n")
    elif unsigned.is_file() and Roster.read(unsigned.read_bytes(), None).serial <= before.serial:
        unsigned.unlink()
    for bundle in devices.values():
        for name in _PINNED:
            if bundle.is_dir() and (folder / name).is_file():
                write_private(bundle / name, (folder / name).read_bytes())


def _same(unsigned: Path, roster: Roster) -> bool:
    """Return whether a roster waits for its signature with these keys."""
    if not unsigned.is_file():
        return False
    waiting = Roster.read(unsigned.read_bytes(), None)
    return (waiting.slots, dict(waiting.keys)) == (roster.slots, dict(roster.keys))


def read_known(folder: Path) -> Roster | None:
    """Return the signed roster of a federation; None if there is none, or not one that can be read."""
    try:
        return Roster.read((folder / ROSTER).read_bytes(), None)
    except (OSError, PayloadError):
        return None


def device_point(bundle: Path, before: Roster | None, number: int) -> bytes | None:
    """Return a device's public key as it stands in a roster; that of before where its file is gone or damaged."""
    try:
        key = load_ssh_public_key((bundle / "device.pub").read_bytes())
    except (OSError, ValueError):
        return None if before is None else before.keys.get(number)
    return point(key) if isinstance(key, ec.EllipticCurvePublicKey) else None


def read_operator(file: Path) -> Ed25519PrivateKey:
    """Read the operator's private key.

    Raises:
        ConfigError: it cannot be read, or is of another kind.
    """
    try:
        key = load_ssh_private_key(file.read_bytes(), None)
    except (OSError, ValueError) as error:
        reason = f"the operator's key cannot be read: {type(error).__name__}: {error}"
        raise ConfigError(f"{file}: {reason}", code="no-key", key="--key", value=str(file)) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{file}: is no operator's key of Ed25519", code="no-key", key="--key", value=str(file))
    return key


def read_public(file: Path) -> Ed25519PublicKey | None:
    """Return the operator's public key; None if it cannot be read."""
    try:
        key = load_ssh_public_key(file.read_bytes())
    except (OSError, ValueError):
        return None
    return key if isinstance(key, Ed25519PublicKey) else None


def sign_file(file: Path, key: Path) -> tuple[Path, Roster]:
    """Sign a roster that waits for it, on whatever machine the operator's key is.

    Args:
        file: `roster.unsigned`, or the folder that holds it.
        key: the operator's private key.

    Returns:
        The signed file, which is `roster.json` beside it, and the roster.

    Raises:
        ConfigError: a file cannot be read, or the folder's devices pin another key.
    """
    waiting = file / UNSIGNED if file.is_dir() else file
    operator = read_operator(key)
    try:
        roster = Roster.read(waiting.read_bytes(), None)
    except FileNotFoundError:
        reason = "no roster waits for a signature; add, remove, rotate and restore write it"
        raise ConfigError(f"{waiting}: {reason}", code="no-file", value=str(waiting)) from None
    except (OSError, PayloadError) as error:
        raise ConfigError(f"{waiting}: {error}", code="unreadable", value=str(waiting)) from None
    pinned = read_public(waiting.with_name(OPERATOR))
    if pinned is not None and pinned != operator.public_key():
        reason = f"is not of {waiting.with_name(OPERATOR)}, whose signature devices demand"
        raise ConfigError(f"{key}: {reason}", code="no-key", key="--key", value=str(key))
    signed = waiting.with_name(ROSTER)
    write_private(signed, roster.signed(operator))
    waiting.unlink()
    return signed, roster


def fingerprint(key: bytes) -> str:
    """Return the fingerprint of a roster's key, as `ssh-keygen -lf device.pub` prints it."""
    public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), key)
    return certificates.fingerprint(public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
