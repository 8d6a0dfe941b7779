"""Registers, revokes and replaces the keys with which devices may connect to the SuperLink."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from shlex import quote

from fedmrn_app.deploy.certificates import expired
from fedmrn_app.deploy.folder import Federation, give_key
from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.runtime.connection import Connection

_USED = "[code: 23]"  # Flower's "Public key already in use": it never takes a key a second time
_NOT_FOUND = "[code: 24]"  # Flower's "Node ID not found": somebody else has unregistered it, so it is done
_AT_ONCE = 2  # Flower's command takes a core for a second


def check_certificate(federation: Federation) -> None:
    """Refuse a server's certificate that has ended, with which nothing connects to the server.

    Raises:
        RunError: says when it has ended, and how it is renewed.
    """
    file = federation.certificate
    if (end := expired(file)) is not None:
        renew = f"fedmrn-deploy server --renew {quote(str(federation.path))}"
        reason = f"the server's certificate expired on {end:%Y-%m-%d}; {renew}"
        raise RunError(f"{file}: {reason}", code="expired", value=str(file))


def operator(federation: Federation) -> Connection:
    """Return the operator's connection to the federation's SuperLink, which is on this machine.

    Raises:
        RunError: the SuperLink does not answer, or its certificate has ended.
    """
    connection = federation.connection(federation.control_port)
    if fault := connection.fault():
        check_certificate(federation)
        raise RunError(
            f"the SuperLink at {connection.address} does not answer ({fault}); start it with "
            f"`fedmrn-deploy server {quote(str(federation.path))} --run`",
            code="unreachable", value=connection.address,
        )  # fmt: skip
    return connection


def known_nodes(connection: Connection) -> set[int]:
    """Return the ids of the nodes whose keys the SuperLink lets in; its list has those that were unregistered, too.

    Raises:
        RunError: it does not answer.
    """
    nodes = connection.ask("supernode", "list")["nodes"]
    return {int(node["node-id"]) for node in nodes if node["status"] != "unregistered"}


def register(federation: Federation, names: Sequence[str], samples: int | None = None) -> list[str]:
    """Register the keys of those devices that are not registered yet, and return the names of these.

    The SuperLink's own list decides: a key that it does not know is registered again, as when its `state.db` was lost.
    A key that was revoked is not.

    Args:
        federation: the federation.
        names: of devices.
        samples: the number of samples of each client of these devices, which the operator confirms; None for no change.

    Raises:
        ConfigError: the key of one of the devices was revoked, or `samples` is out of range.
        RunError: the SuperLink refuses a key; the other keys are registered, and no samples are confirmed.
    """
    if samples is not None and not 0 < samples < 1 << 32:
        reason = "must be at least 1 and below 2^32"
        raise ConfigError(f"--samples={samples}: {reason}", code="range", key="--samples", value=samples)
    chosen = list(map(federation.device_name, names))
    if revoked := [name for name in chosen if federation.devices[name].revoked]:
        reason = f"{past(revoked)} revoked; {rotation(federation, revoked)}"
        raise ConfigError(f"{', '.join(revoked)}: {reason}", code="revoked", key="devices", value=revoked)
    new: list[str] = []
    if samples is None or any(federation.devices[name].node_id is None for name in chosen):
        new = _register_unknown(federation, chosen)
    if samples is not None:
        for name in chosen:
            federation.devices[name].samples = samples
        federation.save()
    return new


def rotation(federation: Federation, names: Sequence[str]) -> str:
    """Return the command that gives devices new keys, as a message closes with it."""
    command = f"fedmrn-deploy rotate {' '.join(names)} --folder {quote(str(federation.path))}"
    return f"`{command}` gives {'it a new one' if len(names) == 1 else 'them new ones'}"


def past(names: Sequence[str]) -> str:
    """Return how a sentence about what became of the keys of devices begins."""
    return "its key was" if len(names) == 1 else "their keys were"


def _register_unknown(federation: Federation, chosen: Sequence[str]) -> list[str]:
    """Register the keys of those devices that the SuperLink does not know, and return the names of these."""
    connection = operator(federation)
    known = known_nodes(connection)
    revoke_former(federation, connection, known)
    new = [name for name in chosen if federation.devices[name].node_id not in known]

    def ask(name: str) -> int:
        words = ("supernode", "register", str(federation.public_key(name)))
        return int(connection.ask(*words, options=("--name", name))["node-id"])

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = {name: pool.submit(ask, name) for name in new}
    failed = {name: error for name, answer in answers.items() if (error := answer.exception()) is not None}
    done = [name for name in new if name not in failed]
    for name in done:
        federation.devices[name].node_id = answers[name].result()
    federation.save()
    also = f"; registered: {', '.join(done)}" if done else ""
    used = [name for name, error in failed.items() if _USED in str(error)]
    for name, error in failed.items():
        if name not in used:
            raise RunError(f"{name}: {error}{also}", code="refused", value=name)
    if used:
        reason = f"{past(used)} registered at this SuperLink before, which takes a key only once"
        reason = f"{reason}; {rotation(federation, used)}{also}"
        raise RunError(f"{', '.join(used)}: {reason}", code="used", value=used)
    return new


def revoke(federation: Federation, names: Iterable[str]) -> None:
    """Revoke the keys of devices, which can no longer connect with them; a key that the SuperLink does not know is.

    Raises:
        RunError: the SuperLink refuses.
    """
    connection = operator(federation)
    for name in map(federation.device_name, names):
        set_aside(federation, name)
        federation.save()
    revoke_former(federation, connection, known_nodes(connection))


def set_aside(federation: Federation, name: str) -> None:
    """Record that a device's key is revoked; `revoke_former` tells the SuperLink."""
    device = federation.devices[name]
    if (key := federation.fingerprint(name)) is not None:
        federation.former_keys[key] = name
    if device.node_id is not None:
        federation.former.append(device.node_id)
    device.node_id, device.revoked = None, True


def revoke_former(federation: Federation, connection: Connection, known: set[int]) -> list[int]:
    """Unregister the keys that the SuperLink knows and that were revoked, as after an older `state.db` was restored.

    Returns:
        Their node ids.

    Raises:
        RunError: the SuperLink refuses.
    """
    found = sorted(known.intersection(federation.former))
    for node in found:
        try:
            connection.ask("supernode", "unregister", str(node))
        except RunError as error:
            if _NOT_FOUND not in str(error):
                raise
    return found


def rotate(federation: Federation, names: Sequence[str], public_key: bytes | None = None) -> None:
    """Revoke the keys of devices, and make and register new ones; the bundles must be copied to the devices again.

    Args:
        federation: the federation.
        names: of devices.
        public_key: of a new key that was made on the only device; None to make new keys.

    Raises:
        RunError: the SuperLink refuses.
    """
    revoke(federation, names)
    for name in map(federation.device_name, names):
        give_key(federation, name, public_key)
        federation.devices[name].revoked = False  # the former key was
    federation.save()
    register(federation, names)
