"""Examines a federation on the server's machine: for each fault a line with its cause and the command that mends it."""

from __future__ import annotations

import shutil
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from shlex import quote

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.hazmat.primitives.serialization.ssh import load_ssh_private_key

from fedmrn_app.deploy.folder import BUNDLE, Federation
from fedmrn_app.deploy.register import known_nodes, operator, rotation
from fedmrn_app.deploy.roster import OPERATOR_KEY, UNSIGNED, read_known, read_public
from fedmrn_app.deploy.seen import UNKNOWN, read_seen
from fedmrn_app.deploy.service_files import stale_pins
from fedmrn_app.errors import ConfigError, PayloadError, RunError
from fedmrn_app.runtime.connection import read_connection
from fedmrn_app.secure.roster import OPERATOR, ROSTER, Roster

SOON = 30  # days before its end in which a certificate is a fault
_LEAST_FREE = 1 << 30  # bytes on the disk; SQLite and checkpoints need some
CLOCK = 60.0  # seconds by which a clock may be wrong; Flower refuses requests that are 5 s early or 305 s late
_QUIET = 600.0  # seconds without a request after which a device is named


@dataclass(frozen=True)
class Finding:
    """One line of an examination.

    Attributes:
        line: what was found, and for a fault the command that mends it.
        fault: whether something has to be done.
    """

    line: str
    fault: bool = True


def examine(federation: Federation) -> Iterator[Finding]:
    """Yield what is wrong with a federation, and a few facts, in the order in which they are to be mended."""
    yield from _files(federation)
    yield from _shared(federation)
    yield from _roster(federation)
    yield from _certificates(federation)
    yield from _connection(federation)
    yield from _versions(federation)
    yield from disk(federation.path)
    yield from _superlink(federation)
    yield from _heard(federation)


def _files(federation: Federation) -> Iterator[Finding]:
    private = [federation.authority_key, federation.key, federation.path]
    private += [federation.bundle(name) / "device.key" for name in federation.devices]
    for file in private:
        if file.exists() and file.stat().st_mode & 0o077:
            yield Finding(f"{file}: others may read it; chmod go= {quote(str(file))}")
    for name in federation.devices:
        bundle = federation.bundle(name)
        missing = [file for file in ("device.pub", "ca.crt", BUNDLE) if not (bundle / file).is_file()]
        if missing:
            command = f"fedmrn-deploy rotate {name}" if missing != [BUNDLE] else "fedmrn-deploy move"
            yield Finding(f"{name}: {', '.join(missing)} of its bundle is missing; {command}, and copy {bundle} again")
        elif not (bundle / "device.key").is_file():
            if "last_seen" not in read_seen(federation.seen).get(name, {}):  # others may have been deleted once copied
                reason = "device.key of its bundle is missing; if the device has not made its key itself"
                yield Finding(f"{name}: {reason}, fedmrn-deploy rotate {name}, and copy {bundle} again")
        elif not _same_key(bundle):
            yield Finding(f"{name}: device.pub is not of device.key; fedmrn-deploy rotate {name}, and copy {bundle}")
        elif (bundle / "ca.crt").read_bytes() != federation.authority.read_bytes():
            yield Finding(
                f"{name}: ca.crt of its bundle is another; cp {quote(str(federation.authority))} "
                f"{quote(str(bundle / 'ca.crt'))}, copy it"
            )


def _shared(federation: Federation) -> Iterator[Finding]:
    """Name devices that have one key together, which the gate refuses because it cannot tell them apart."""
    for first, *others in federation.shared_keys():
        reason = f"have the same key, which is refused; {rotation(federation, others)}; copy their bundles again"
        yield Finding(f"{', '.join([first, *others])}: {reason}")


def _same_key(bundle: Path) -> bool:
    try:
        key = load_ssh_private_key((bundle / "device.key").read_bytes(), None).public_key()
        return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) == (bundle / "device.pub").read_bytes().strip()
    except ValueError:
        return False


def _roster(federation: Federation) -> Iterator[Finding]:
    """Examine the signed list of the devices' keys, and which private keys lie on this machine."""
    path, sign = federation.path, f"fedmrn-deploy sign {quote(str(federation.path))}"
    public, known = read_public(path / OPERATOR), read_known(path)
    if not (path / OPERATOR).is_file():
        yield Finding(
            f"devices do not know each other's keys, so a server that lies can learn from secure sums; {sign} makes "
            "the operator's key, and the bundles are to be copied again",
            fault=False,
        )
        return
    if (path / UNSIGNED).is_file():
        yield Finding(f"{path / UNSIGNED}: waits for the operator's signature; {sign} --key FILE")
    if known is None or public is None:
        yield Finding(f"{path / ROSTER}: cannot be read, nor can {OPERATOR}; restore a backup")
        return
    try:
        Roster.read((path / ROSTER).read_bytes(), public)
    except PayloadError:
        yield Finding(f"{path / ROSTER}: is not signed with the key of {path / OPERATOR}; restore a backup")
        return
    yield Finding(f"the roster {known.serial} has the keys of {len(known.keys)} devices", fault=False)
    here = [name for name in federation.devices if (federation.bundle(name) / "device.key").is_file()]
    if (path / OPERATOR_KEY).is_file() or here:
        keys = ([OPERATOR_KEY] if (path / OPERATOR_KEY).is_file() else []) + [f"device.key of {each}" for each in here]
        shown = ", ".join(keys[:5]) + (", ..." if len(keys) > 5 else "")
        reason = "who reads them can put keys into secure sums; move them away once the bundles are copied"
        yield Finding(f"on this machine: {shown}; {reason}", fault=False)


def _certificates(federation: Federation) -> Iterator[Finding]:
    """Examine both certificates, and whether the running server has the one of the folder."""
    renew = f"fedmrn-deploy server --renew {quote(str(federation.path))}, and restart the server"
    try:
        authority = x509.load_pem_x509_certificate(federation.authority.read_bytes())
        own = x509.load_pem_x509_certificate(federation.certificate.read_bytes())
        key = load_pem_private_key(federation.key.read_bytes(), None)
    except (OSError, ValueError) as error:
        yield Finding(f"{federation.path}: a certificate or key cannot be read ({error}); {renew}, or restore a backup")
        return
    days = days_left(authority)
    yield Finding(
        f"the authority's certificate {_lasts(authority)}"
        + (
            "" if days > SOON else "; make a new federation with fedmrn-deploy init, for which devices need new bundles"
        ),
        days <= SOON,
    )
    days = days_left(own)
    yield Finding(
        f"the server's certificate {_lasts(own)}" + ("" if days > SOON else f"; {renew}"),
        days <= SOON,
    )
    try:
        own.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        yield Finding(f"{federation.certificate}: is not of {federation.authority}; {renew}")
    if key.public_key() != own.public_key():
        yield Finding(f"{federation.certificate}: is not of {federation.key}; {renew}")
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    for host in federation.hosts:
        if host not in known:
            yield Finding(f"{federation.certificate}: does not name {host}; {renew}")
    for port in (federation.port, federation.control_port):
        served = _served(port)
        if served is not None and served != own:
            reason = f"the server at port {port} has another certificate than {federation.certificate}"
            yield Finding(f"{reason}; restart it, for example with systemctl restart fedmrn-server")


def _lasts(certificate: x509.Certificate) -> str:
    """Return until when a certificate is valid, as a line says it."""
    end, days = certificate.not_valid_after_utc, days_left(certificate)
    return f"expired on {end:%Y-%m-%d}" if days < 0 else f"is valid for {days} more days"


def days_left(certificate: x509.Certificate) -> int:
    """Return the whole days until a certificate ends, negative after its end."""
    return (certificate.not_valid_after_utc - datetime.now(UTC)).days


def _served(port: int) -> x509.Certificate | None:
    """Return the certificate of whatever listens on a port of this machine; None if nothing does, or without TLS."""
    try:
        return x509.load_pem_x509_certificate(ssl.get_server_certificate(("127.0.0.1", port), timeout=5).encode())
    except (OSError, ValueError):
        return None


def _connection(federation: Federation) -> Iterator[Finding]:
    move = f"fedmrn-deploy move {quote(str(federation.path))}"
    try:
        connection = read_connection(federation.name, federation.home)
    except ConfigError as error:
        yield Finding(f"{error}; {move}")
        return
    expected = federation.connection(federation.control_port)
    if connection.address == expected.address and connection.authority != expected.authority:
        reason = f"trusts another authority, {connection.authority}, than this folder's {expected.authority}"
        yield Finding(f"`fedmrn --on {federation.name}` {reason}; {move}")
    elif connection.address != expected.address:
        yield Finding(f"`fedmrn --on {federation.name}` leads to {connection.address}, not {expected.address}; {move}")


def _versions(federation: Federation) -> Iterator[Finding]:
    for place, command in (
        (federation.path / "server", "fedmrn-deploy server"),
        *((federation.bundle(name), f"fedmrn-deploy device {name}") for name in federation.devices),
    ):
        for pin in stale_pins(place):
            yield Finding(f"{place}: its image has {pin}; {command} {quote(str(federation.path))} writes it again")


def disk(place: Path) -> Iterator[Finding]:
    """Examine the free space of the disk that a folder is on."""
    free = shutil.disk_usage(place).free
    gigabytes = f"{free / 2**30:.1f} GiB are free on the disk of {place}"
    yield Finding(gigabytes + ("" if free > _LEAST_FREE else "; make room there"), free <= _LEAST_FREE)


def _superlink(federation: Federation) -> Iterator[Finding]:
    """Compare the keys and nodes of the folder with the SuperLink's own list."""
    try:
        known = known_nodes(operator(federation))
    except RunError as error:
        yield Finding(str(error))
        return
    folder = f"--folder {quote(str(federation.path))}"
    for name, device in federation.devices.items():
        if device.node_id is None:
            if device.revoked:  # as somebody wanted; Flower does not register a key a second time
                line = f"{name}: its key is revoked; fedmrn-deploy rotate {name} {folder} gives it a new one"
            else:
                line = f"{name}: its key is not registered; fedmrn-deploy register {name} {folder} lets it in"
            yield Finding(line, not device.revoked)
        elif device.node_id not in known:
            reason = "its key is not known to the SuperLink, whose state.db was lost or is an older one"
            yield Finding(f"{name}: {reason}; fedmrn-deploy register {name} {folder}")
    for node in sorted(known - {device.node_id for device in federation.devices.values()}):
        if node in federation.former:
            mend = f"fedmrn-deploy register --all {folder}"
            yield Finding(f"node {node}: its key was revoked or replaced, and the SuperLink still knows it; {mend}")
        else:
            mend = f"flwr supernode unregister {node} {federation.name}"
            yield Finding(f"node {node}: is no device of {federation.path}, and the SuperLink lets it in; {mend}")


def _heard(federation: Federation) -> Iterator[Finding]:
    """Name devices that are silent, whose clock or Flower is another, and what was refused last."""
    seen, now = read_seen(federation.seen), time.time()
    for name in federation.devices:
        record = seen.get(name, {})
        last = record.get("last_seen")
        refused = record.get("refused", {})
        if last is None:
            yield Finding(f"{name}: has never connected; on the device: fedmrn-deploy device BUNDLE --run")
        elif now - last > _QUIET:
            reason = f"was last heard of {(now - last) / 60:,.0f} minutes ago"
            yield Finding(f"{name}: {reason}; on the device: fedmrn-deploy doctor BUNDLE says why")
        if refused and refused["time"] > (last or 0):
            yield Finding(
                f"{name}: refused {_ago(now - refused['time'])}: {refused['why']}{_mend(name, refused['why'])}"
            )
        clock = record.get("clock")
        if clock is not None and abs(clock) > CLOCK:
            way = "behind" if clock > 0 else "ahead of"
            yield Finding(
                f"{name}: its clock is {abs(clock):,.0f} s {way} this server's; set it there, such as with NTP"
            )
        if (flower := record.get("flower")) not in (None, version("flwr")):
            mend = f'pip install "flwr=={version("flwr")}" there'
            yield Finding(f"{name}: has Flower {flower}, and this server {version('flwr')}; {mend}")
    if stranger := seen.get(UNKNOWN, {}).get("refused"):
        when = _ago(now - stranger["time"])
        yield Finding(f"a request from {stranger['peer']} was refused {when}: {stranger['why']}", fault=False)


def _mend(name: str, why: str) -> str:
    """Return what to do about a refusal."""
    if "clock" in why:
        return "; set the clock of the device"
    if "revoked" in why:
        return f"; fedmrn-deploy rotate {name} gives it a new key"
    if "registered" in why:
        return f"; fedmrn-deploy register {name}"
    if "max-message" in why or "connected already" in why:
        return ""
    return "; copy its bundle to the device again, and restart it there"


def _ago(seconds: float) -> str:
    return f"{seconds:,.0f} s ago" if seconds < 120 else f"{seconds / 60:,.0f} minutes ago"
