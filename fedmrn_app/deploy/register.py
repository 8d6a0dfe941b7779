"""Registers, revokes and replaces the keys with which devices may connect to the SuperLink."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from shlex import quote

from fedmrn_app.deploy.certificates import expired
from fedmrn_app.deploy.folder import Federation, give_key
from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.runtime.connection import Connection

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

    Args:
        federation: the federation.
        names: of devices.
        samples: the number of samples of each client of these devices, which the operator confirms; None for no change.

    Raises:
        RunError: the SuperLink refuses a key; the other keys are registered.
    """
    if samples is not None:
        if not 0 < samples < 1 << 32:
            reason = "must be at least 1 and below 2^32"
            raise ConfigError(f"--samples={samples}: {reason}", code="range", key="--samples", value=samples)
        for name in map(federation.device_name, names):
            federation.devices[name].samples = samples
        federation.save()
    chosen = list(map(federation.device_name, names))
    if samples is not None and all(federation.devices[name].node_id is not None for name in chosen):
        return []
    connection = operator(federation)
    known = known_nodes(connection)
    revoke_former(federation, connection, known)
    new = [name for name in chosen if federation.devices[name].node_id not in known]

    def ask(name: str) -> int:
        words = ("supernode", "register", str(federation.public_key(name)))
        return int(connection.ask(*words, options=("--name", name))["node-id"])

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = {name: pool.submit(ask, name) for name in new}
    for name, answer in answers.items():
        if answer.exception() is None:
            device = federation.devices[name]
            device.node_id, device.revoked = answer.result(), False
    federation.save()
    for name, answer in answers.items():
        if (error := answer.exception()) is not None:
            raise RunError(f"{name}: {error}", code="refused", value=name)
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
    register(federation, names)
