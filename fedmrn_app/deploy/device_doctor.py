"""Examines a device, on the device: its server, the server's certificate, the clock, versions and the disk."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime

from cryptography import x509

from fedmrn_app.deploy.device import Bundle, check_server, own_point, trusting
from fedmrn_app.deploy.doctor import CLOCK, SOON, Finding, days_left, disk
from fedmrn_app.deploy.roster import read_public
from fedmrn_app.deploy.service_files import stale_pins
from fedmrn_app.errors import ConfigError, FedMRNError, PayloadError
from fedmrn_app.secure.roster import OPERATOR, ROSTER, Roster

_SECONDS = 15.0  # to reach the server


def examine_device(bundle: Bundle) -> Iterator[Finding]:
    """Yield what is wrong with a device, and a few facts."""
    try:
        check_server(bundle)
        certificate, answer = _ask(bundle)
    except (FedMRNError, OSError, ValueError) as error:
        yield Finding(str(error))
    else:
        days = days_left(certificate)
        mend = "; fedmrn-deploy server --renew on the server, and restart it there" if days <= SOON else ""
        yield Finding(f"the server's certificate is valid for {days} more days{mend}", days <= SOON)
        yield from _device_clock(answer)
    try:
        own = own_point(bundle)
    except ConfigError as error:
        yield Finding(str(error))
        own = None
    yield from _roster(bundle, own)
    for pin in stale_pins(bundle.path):
        yield Finding(f"{bundle.path}: was written for {pin}; install the former, or copy the bundle again")
    yield from disk(bundle.path)


def _roster(bundle: Bundle, own: bytes | None) -> Iterator[Finding]:
    """Examine the keys of other devices that the bundle pins; `own` is this device's, None if it cannot be read."""
    if not (bundle.path / OPERATOR).is_file():
        line = f"{bundle.path}: has no {OPERATOR}, so this device takes the keys of others for secure sums unchecked"
        yield Finding(f"{line}; copy the bundle again", fault=False)
        return
    public = read_public(bundle.path / OPERATOR)
    try:
        roster = Roster.read((bundle.path / ROSTER).read_bytes(), public)
    except (OSError, ValueError, PayloadError) as error:
        yield Finding(f"{bundle.path / ROSTER}: {error}; copy the bundle again")
        return
    if public is None or (own is not None and own not in roster.keys.values()):
        yield Finding(f"{bundle.path}: its roster does not have the key of this device; copy the bundle again")
    else:
        yield Finding(f"the roster {roster.serial} has the keys of {len(roster.keys)} devices", fault=False)


def _ask(bundle: Bundle) -> tuple[x509.Certificate, str]:
    """Return the server's certificate, and its answer to a request without a key."""
    host, _, port = bundle.server.rpartition(":")
    host = host.strip("[]")
    with (
        socket.create_connection((host, int(port)), timeout=_SECONDS) as plain,
        trusting(bundle).wrap_socket(plain, server_hostname=host) as link,
    ):
        certificate = x509.load_der_x509_certificate(link.getpeercert(binary_form=True) or b"")
        link.sendall(f"GET /health HTTP/1.1\r\nHost: {bundle.server}\r\nConnection: close\r\n\r\n".encode())
        parts = []
        while part := link.recv(4096):
            parts.append(part)
    return certificate, b"".join(parts).decode("latin-1")


def _device_clock(answer: str) -> Iterator[Finding]:
    """Compare this clock with the one in the server's answer."""
    dates = [line.partition(":")[2].strip() for line in answer.splitlines() if line.lower().startswith("date:")]
    if not dates:
        return
    theirs = datetime.strptime(dates[0], "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)
    ahead = (datetime.now(UTC) - theirs).total_seconds()
    fault = abs(ahead) > CLOCK
    way = "ahead of" if ahead > 0 else "behind"
    line = f"this clock is {abs(ahead):,.0f} s {way} the server's"
    yield Finding(line + ("; set it, such as with timedatectl set-ntp true" if fault else ""), fault)
