"""Which node hosts which client, from round to round: nodes come, die, and come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedmrn_app.config.schema import Config
from fedmrn_app.errors import RunError
from fedmrn_app.flower.host_table import HostTable, Integers, present
from fedmrn_app.flower.liveness import LiveNodes
from fedmrn_app.flower.messages import Hosted, read_hosted

_POLL_SECONDS = 0.1
_MOST_ASKED = 256  # nodes at a time: a simulation finds a message among few faster than among thousands
_MOST_SAMPLES = (1 << 32) - 1  # of a client, as payloads say them
_MOST_TOLD = 20  # refusals, each in a line of the log


@dataclass(frozen=True)
class _Question:
    """A node that was asked whom it hosts: since when it has been running, and until when it may answer."""

    node: int
    started: str
    deadline: float


class ClientDirectory:
    """Who hosts which client.

    A node is asked once, and again when it was started anew. What it says holds while it is alive; of several nodes
    that host the same client the first one is used, and the next when that one has died.
    """

    def __init__(
        self, grid: Grid, nodes: LiveNodes, config: Config, packed: bytes, report: Callable[[str], None]
    ) -> None:
        self._grid = grid
        self._nodes = nodes
        self._config = config
        self._packed = packed
        self._report = report
        self._started: dict[int, str] = {}  # of the nodes that have answered, or will never
        self._questions: dict[str, _Question] = {}  # without an answer yet, by the message
        self._offers: dict[
            int, tuple[Integers, Integers]
        ] = {}  # clients and their samples, by the nodes that host them
        self._offered = np.zeros(config.clients, np.bool_)  # by any node, that has gone perhaps
        self._refused: dict[int, str] = {}
        self._failures: list[str] = []
        self._shares: set[int] = set()  # what nodes say in num-partitions
        self._here = present(0, [])

    def find(self) -> HostTable:
        """Wait until a run may start, and return the hosts of all clients that take part.

        It may when each client is on a node, or on one that takes no part for its data or for what it was asked to
        run. With `min_clients` it may too when so many are there and no further node has come for `node_timeout`
        seconds.

        Raises:
            RunError: too few clients are there when no further node has come for `node_timeout` seconds, or none
                takes part. A node that has come may take `round_timeout` seconds to answer, an hour where that is null.
        """
        least = self._config.min_clients
        self._here = self._wait(least or 1, complete=True, enough=least is not None)
        if len(self._here) < self._config.clients_per_round:
            self._report(
                f"clients_per_round={self._config.clients_per_round}: only {len(self._here)} clients take part"
            )
        return self._here

    def present(self) -> HostTable:
        """The hosts of the clients that are there now, at the beginning of a round.

        Where fewer than `min_clients` are there, or none at all, more are waited for as in `find`.

        Raises:
            RunError: none came.
        """
        if self._nodes.steady:
            return self._here
        before = self._here
        self.look()
        self._here = self._hosts()
        if len(self._here) < (self._config.min_clients or 1):
            self._tell(before)
            before = self._here
            self._report(f"{len(self._here)} clients are there; waiting for more, {self._config.node_timeout:g} s each")
            self._here = self._wait(self._config.min_clients or 1, complete=False, enough=True)
        self._tell(before)
        return self._here

    def _tell(self, before: HostTable) -> None:
        """Say who has come and gone, in a line per node."""
        changed: dict[tuple[int | None, int | None], list[int]] = {}
        for client in sorted(before.keys() | self._here.keys()):
            last, now = (
                None if host is None else host.node_id for host in (before.get(client), self._here.get(client))
            )
            if now != last:
                changed.setdefault((last, now), []).append(client)
        for (last, now), clients in changed.items():
            if now is None:
                self._report(f"node {last} has gone: {names(clients)} will take no part until a node comes for it")
            elif last is None:
                self._report(f"node {now} has come: {names(clients)} will take part from now on")
            else:
                self._report(f"node {last} has gone: {names(clients)} is on node {now} from now on")

    def _wait(self, least: int, *, complete: bool, enough: bool) -> HostTable:
        """Look until `least` clients are there, and with `complete` all, but for those that refuse.

        With `enough`, `least` will do when nobody else has come for `node_timeout` seconds.
        """
        config, news, told = self._config, time.monotonic(), False
        while True:
            if self.look():
                news = time.monotonic()
            here = self._hosts()
            absent = np.setdiff1d(np.arange(config.clients), here.clients, assume_unique=True)
            missing = [client for client in absent.tolist() if client not in self._refused]
            if len(here) >= least and not (complete and missing):
                return here
            if not missing and not enough:
                raise RunError(f"clients={config.clients}: none of them takes part{self._reason}")
            if time.monotonic() - news > config.node_timeout:
                if enough and len(here) >= least:
                    self._report(f"{len(here)} of {config.clients} clients are there; others may join in any round")
                    return here
                if not self._questions:
                    raise RunError(self._too_few(here, missing))
                if not told:
                    told = True
                    self._report(
                        f"waiting for the answers of {len(self._questions)} nodes that have come, for "
                        f"{config.answer_timeout:g} s at most"
                    )
            time.sleep(_POLL_SECONDS)

    def _too_few(self, here: HostTable, missing: list[int]) -> str:
        config = self._config
        where = f"with {len(self._nodes.alive)} nodes connected for {config.node_timeout:g} s{self._reason}"
        if config.min_clients is not None:
            return f"min_clients={config.min_clients}: {len(here)} are there, {where}; start more nodes"
        if not missing:
            return f"clients={config.clients}: none of them takes part{self._reason}"
        names = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        return (
            f"clients={config.clients}: {len(missing)} of them are on no node ({names}), {where}; start more nodes, "
            "take fewer clients, or say in min_clients how many are enough"
        )

    @property
    def _reason(self) -> str:
        return f"; a node answered: {self._failures[0]}" if self._failures else ""

    def _hosts(self) -> HostTable:
        """The host of each client that has one: the first node that is alive of those that host it."""
        alive = self._nodes.alive
        offers = [(node, *offer) for node, offer in self._offers.items() if alive.get(node) == self._started.get(node)]
        return present(self._config.clients, offers)

    def look(self) -> bool:
        """See who is there, ask who has not been asked, and read the answers; whether there was anything new.

        It waits for nothing, and may be called in the middle of a round: who comes then is ready for the next one.
        """
        self._nodes.look()
        for node in [node for node in self._started if not self._same(node)]:
            self._forget(node)
        asked = {question.node for question in self._questions.values()}
        new = [node for node in sorted(self._nodes.alive) if node not in self._started and node not in asked]
        return bool(self._ask(new[: max(0, _MOST_ASKED - len(asked))])) | self._read_answers()

    def _same(self, node: int) -> bool:
        """Whether a node is, or may still be, what it was when it answered."""
        running = self._nodes.alive.get(node)
        return node in self._nodes.listed if running is None else running == self._started[node]

    def _forget(self, node: int) -> None:
        del self._started[node]
        self._offers.pop(node, None)

    def _ask(self, nodes: Iterable[int]) -> list[Message]:
        """Tell nodes the run's configuration, and ask whom they host."""
        content = RecordDict({"run": ConfigRecord({"config": self._packed})})
        queries = [Message(content, dst_node_id=node, message_type="query") for node in nodes]
        deadline = time.monotonic() + self._config.answer_timeout
        if queries:
            self._grid.push_messages(queries)
        for query in queries:
            node = query.metadata.dst_node_id
            self._questions[query.metadata.message_id] = _Question(node, self._nodes.alive[node], deadline)
        return queries

    def _read_answers(self) -> bool:
        """Read what has come; whether anything has."""
        come = list(self._grid.pull_messages(list(self._questions))) if self._questions else []
        for reply in come:
            question = self._questions.pop(reply.metadata.reply_to_message_id, None)
            if question is not None and (reply.has_error() or reply.metadata.src_node_id == question.node):
                self._started[question.node] = question.started
                self._add(question.node, read_hosted(reply))
        for message, question in list(self._questions.items()):
            running = self._nodes.alive.get(question.node, question.started)
            if running != question.started or question.node not in self._nodes.listed:
                del self._questions[message]  # it is asked again when it is there
            elif time.monotonic() > question.deadline:
                del self._questions[message]
                self._started[question.node] = question.started
                self._refuse(question.node, Hosted({}, "has not answered within round_timeout"))
        return bool(come)

    def _refuse(self, node: int, hosted: Hosted) -> None:
        """Note why a node takes no part."""
        reason = str(hosted.refusal)
        self._failures.append(reason)
        for client in hosted.samples:
            if 0 <= client < self._config.clients:
                self._refused.setdefault(client, reason)
        whom = names(hosted.samples) or "its clients"
        if len(self._failures) <= _MOST_TOLD:
            self._report(f"node {node}: {whom} will take no part: {reason}")
        elif len(self._failures) == _MOST_TOLD + 1:
            self._report("further nodes that take no part are not named")

    def _add(self, node: int, hosted: Hosted) -> None:
        """Register the clients of a node."""
        if len(hosted.samples) > self._config.clients:
            hosted = Hosted({}, f"it says that it hosts {len(hosted.samples)} clients, of {self._config.clients}")
        if hosted.refusal is not None:
            self._refuse(node, hosted)
            return
        if hosted.nodes is not None and self._shares and hosted.nodes not in self._shares:
            self._report(
                f"node {node}: num-partitions={hosted.nodes}, where others say {min(self._shares)}; clients are shared "
                "out as intended only if all nodes say the same"
            )
        self._shares.update(() if hosted.nodes is None else [hosted.nodes])
        fit = {client: n for client, n in hosted.samples.items() if 0 <= client < self._config.clients and n > 0}
        clients = np.fromiter(fit, np.int64)
        here = self._hosts() if self._offered[clients].any() else present(0, [])
        elsewhere = np.intersect1d(clients, here.clients)
        self._offers[node] = clients, np.fromiter((min(n, _MOST_SAMPLES) for n in fit.values()), np.int64)
        self._offered[clients] = True
        if len(elsewhere):
            first = here[elsewhere[0]].node_id
            self._report(
                f"node {node}: {names(elsewhere)} is on node {first} already; this one is asked only when that has "
                "gone (say another partition-id where it has other data)"
            )


def names(clients: Iterable[int]) -> str:
    """The first of some clients, for a line of the log."""
    clients = list(clients)
    return ", ".join(f"client {client}" for client in clients[:5]) + (", ..." if len(clients) > 5 else "")
