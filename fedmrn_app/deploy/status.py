"""How the devices are: registered, connected, last heard of, which clients they host, and what they answered."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from fedmrn_app.deploy.folder import Device, Federation
from fedmrn_app.deploy.gateway import read_seen
from fedmrn_app.deploy.register import operator


@dataclass(frozen=True)
class DeviceStatus:
    """One device.

    Attributes:
        device: its name.
        node_id: as the SuperLink knows it.
        state: online, offline, registered (and never connected), unregistered or revoked.
        last_seen: seconds since its last request; None if there was none.
        clients: the clients of a run that it hosts.
        rounds: in which it has trained.
        answers: messages that it has replied to: one per round and client, and one at the start of each run.
    """

    device: str
    node_id: int | None
    state: str
    last_seen: float | None
    clients: str
    rounds: int
    answers: int


def read_status(federation: Federation) -> list[DeviceStatus]:
    """Ask the SuperLink and the gate.

    Raises:
        RunError: the SuperLink does not answer.
    """
    nodes = operator(federation).ask("supernode", "list")["nodes"]
    states = {int(node["node-id"]): str(node["status"]) for node in nodes}
    seen = read_seen(federation.seen)
    now = time.time()
    found = []
    for name, device in federation.devices.items():
        there = seen.get(name)
        found.append(
            DeviceStatus(
                device=name,
                node_id=device.node_id,
                state=_state(device, states),
                last_seen=None if there is None else max(0.0, now - there["last_seen"]),
                clients=_clients(device, len(federation.devices)),
                rounds=0 if there is None else int(there.get("rounds", 0)),
                answers=0 if there is None else int(there["answers"]),
            )
        )
    return found


def _state(device: Device, states: dict[int, str]) -> str:
    if device.node_id is None:
        return "revoked" if device.revoked else "unregistered"
    return states.get(device.node_id, "unregistered")


def _clients(device: Device, devices: int) -> str:
    """Of a run with more clients than devices, each hosts every so-manyth; one with rows of its own is one client."""
    if "data-path=" in device.config:
        return str(device.number)
    return f"{device.number}, {device.number + devices}, ..."


def as_json(found: list[DeviceStatus]) -> list[dict[str, object]]:
    """The same for programs."""
    return [asdict(status) for status in found]


def print_status(console: Console, found: list[DeviceStatus]) -> None:
    """Print one row per device."""
    table = Table("device", "node", "state", "last seen", "clients", "rounds", "answers")
    for status in found:
        seen = "never" if status.last_seen is None else f"{_duration(status.last_seen)} ago"
        node = "" if status.node_id is None else str(status.node_id)
        table.add_row(status.device, node, status.state, seen, status.clients, str(status.rounds), str(status.answers))
    console.print(table)


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
