"""Who may connect: devices' keys at the SuperLink, registered, revoked and replaced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from fedmrn_app.deploy.certificates import make_device_key
from fedmrn_app.deploy.folder import Federation
from fedmrn_app.errors import RunError
from fedmrn_app.runtime.connection import Connection

_AT_ONCE = 2  # Flower's command takes a core for a second


def operator(federation: Federation) -> Connection:
    """The operator's connection to the federation's SuperLink, on its own machine.

    Raises:
        RunError: it does not answer.
    """
    connection = Connection(federation.name, f"127.0.0.1:{federation.control_port}", federation.authority)
    if fault := connection.fault():
        raise RunError(
            f"the SuperLink at {connection.address} does not answer ({fault}); start it with "
            f"`fedmrn-deploy server {federation.path} --run`"
        )
    return connection


def register(federation: Federation, names: Sequence[str]) -> list[str]:
    """Register devices' keys; those that are registered stay as they are. Return the names of the new ones.

    Raises:
        RunError: the SuperLink refuses one; those before it are registered.
    """
    connection = operator(federation)
    new = [name for name in map(federation.device_name, names) if federation.devices[name].node_id is None]

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
            raise RunError(f"{name}: {error}")
    return new


def revoke(federation: Federation, names: Iterable[str]) -> None:
    """Shut devices out: their keys are good for nothing from now on.

    Raises:
        RunError: the SuperLink refuses.
    """
    connection = operator(federation)
    for name in map(federation.device_name, names):
        device = federation.devices[name]
        if device.node_id is not None:
            connection.ask("supernode", "unregister", str(device.node_id))
        device.node_id, device.revoked = None, True
        federation.save()


def rotate(federation: Federation, names: Sequence[str]) -> None:
    """Give devices new keys and register these; the old ones are good for nothing, and the bundles are to be copied.

    Raises:
        RunError: the SuperLink refuses.
    """
    revoke(federation, names)
    for name in map(federation.device_name, names):
        bundle = federation.bundle(name)
        make_device_key(bundle / "device.key", federation.public_key(name))
    register(federation, names)
