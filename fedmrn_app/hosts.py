"""Which node hosts which client: asked once when a run starts."""

from __future__ import annotations

import time
from collections.abc import Callable

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedmrn_app.config.types import Config
from fedmrn_app.errors import RunError
from fedmrn_app.messages import Hosted, read_hosted
from fedmrn_app.strategy import Host


class _Found:
    """Who has answered so far."""

    def __init__(self, clients: int, report: Callable[[str], None]) -> None:
        self.clients = clients
        self.report = report
        self.hosts: dict[int, Host] = {}
        self.refused: dict[int, str] = {}
        self.failures: list[str] = []

    def missing(self) -> list[int]:
        """Clients of which no node has said anything."""
        return [client for client in range(self.clients) if client not in self.hosts and client not in self.refused]

    def add(self, node: int, hosted: Hosted) -> None:
        """Register the clients of a node; a client that another node already hosts stays with that one."""
        if hosted.refusal is not None:
            self.failures.append(hosted.refusal)
            for client in hosted.samples:
                self.refused.setdefault(client, hosted.refusal)
            names = ", ".join(f"client {client}" for client in list(hosted.samples)[:5]) or "its clients"
            self.report(f"node {node}: {names} will take no part: {hosted.refusal}")
            return
        for client, count in hosted.samples.items():
            if not (0 <= client < self.clients and count > 0):
                continue
            if client in self.hosts:
                self.report(
                    f"node {node}: client {client} is on node {self.hosts[client].node_id} already; this one is not "
                    "asked (partition-id must differ)"
                )
                continue
            self.hosts[client] = Host(node, count)


def find_hosts(grid: Grid, config: Config, packed: bytes, report: Callable[[str], None]) -> dict[int, Host]:
    """Tell every node the run's configuration and ask which clients it hosts, until all clients of the run are there.

    Clients whose node says that it takes no part, for its data or for what it was asked to run, are done without.

    Args:
        grid: Flower's.
        config: of the run.
        packed: the same as bytes, see `pack_config`.
        report: is told what is wrong with a node.

    Raises:
        RunError: clients are still on no node when no further node has come for `node_timeout` seconds, or no client
            at all takes part.
    """
    found = _Found(config.clients, report)
    asked: set[int] = set()
    deadline = time.monotonic() + config.node_timeout
    while found.missing() and time.monotonic() < deadline:
        nodes = sorted(set(grid.get_node_ids()) - asked)
        if not nodes:
            time.sleep(0.1)
            continue
        asked.update(nodes)
        content = RecordDict({"run": ConfigRecord({"config": packed})})
        queries = [Message(content, dst_node_id=node, message_type="query") for node in nodes]
        for reply in grid.send_and_receive(queries, timeout=config.round_timeout):
            found.add(reply.metadata.src_node_id, read_hosted(reply))
        deadline = time.monotonic() + config.node_timeout
    missing = found.missing()
    reason = f"; a node answered: {found.failures[0]}" if found.failures else ""
    if missing:
        names = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        raise RunError(
            f"clients={config.clients}: {len(missing)} of them are on no node ({names}), with {len(asked)} nodes "
            f"connected for {config.node_timeout:g} s{reason}; start more nodes or take fewer clients"
        )
    if not found.hosts:
        raise RunError(f"clients={config.clients}: none of them takes part{reason}")
    if len(found.hosts) < config.clients_per_round:
        report(f"clients_per_round={config.clients_per_round}: only {len(found.hosts)} clients take part")
    return dict(sorted(found.hosts.items()))
