"""Shows the devices: whether they are registered and connected, which clients they host, and what they answered."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from fedmrn_app.deploy.folder import Device, Federation
from fedmrn_app.deploy.register import operator
from fedmrn_app.deploy.seen import read_seen


@dataclass(frozen=True, kw_only=True)
class DeviceStatus:
    """The status of one device.

    Attributes:
        device: its name.
        node_id: its id at the SuperLink.
        state: online, offline, registered (and never connected), unregistered or revoked.
        last_seen: seconds since its last request; None if it has sent none.
        clients: the clients of a run that it hosts.
        rounds: number of rounds in which it has trained.
        answers: number of messages that it has replied to: one per round and client, and one at the start of each run.
    """

    device: str
    node_id: int | None
    state: str
    last_seen: float | None
    clients: str
    rounds: int
    answers: int


def read_status(federation: Federation) -> list[DeviceStatus]:
    """Return the status of all devices, from the SuperLink and the gate's record.

    Raises:
        RunError: the SuperLink does not answer.
    """
    nodes = operator(federation).ask("supernode", "list")["nodes"]
    states = {int(node["node-id"]): str(node["status"]) for node in nodes}
    seen = read_seen(federation.seen)
    now = time.time()
    found = []
    for name, device in federation.devices.items():
        record = seen.get(name, {})
        found.append(
            DeviceStatus(
                device=name,
                node_id=device.node_id,
                state=_state(device, states),
                last_seen=max(0.0, now - record["last_seen"]) if "last_seen" in record else None,
                clients=_clients(device, federation.slots),
                rounds=int(record.get("rounds", 0)),
                answers=int(record.get("answers", 0)),
            )
        )
    return found


def _state(device: Device, states: dict[int, str]) -> str:
    if device.node_id is None:
        return "revoked" if device.revoked else "unregistered"
    return states.get(device.node_id, "unregistered")


def _clients(device: Device, devices: int) -> str:
    """Return the clients that a device hosts: every `devices`-th one, or a single one if it has rows of its own."""
    if "data-path=" in device.config:
        return str(device.number)
    return f"{device.number}, {device.number + devices}, ..."


def print_status(console: Console, found: list[DeviceStatus]) -> None:
    """Print a table with one row per device."""
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
