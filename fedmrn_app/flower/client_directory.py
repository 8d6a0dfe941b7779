"""The directory of clients: which node hosts which client, from round to round, while nodes connect and disconnect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from fedmrn_app.errors import RunError
from fedmrn_app.exchange.clock import Clock
from fedmrn_app.exchange.liveness import LiveNodes
from fedmrn_app.exchange.timeouts import RoundTimeout
from fedmrn_app.flower.device_records import DeviceRecords
from fedmrn_app.flower.host_table import HostTable, Integers, host_table
from fedmrn_app.flower.hosted import Hosted, query_content, read_hosted
from fedmrn_app.flower.residual_notes import ResidualNotes
from fedmrn_app.flower.round_settings import RoundSettings

_POLL_SECONDS = 0.1
_MAX_QUERIES = 256  # at a time: a simulation finds a message among few faster than among thousands
_MAX_SAMPLES = (1 << 32) - 1  # of a client, the largest number that a payload can hold
_MAX_REFUSAL_LINES = 20  # in the log
_OTHER_COLUMNS = "its columns, their order or their categories are not"
_NAME_COLUMNS = "set dataset.feature_columns=[NAME,...] and dataset.categories, or dataset.statistics"


class Directory(Protocol):
    """What the loops of rounds need to know about clients."""

    @property
    def current(self) -> HostTable:
        """The hosts of the clients that were available when `available` was last called."""

    def available(self) -> HostTable:
        """Return the hosts of the clients that are available now."""

    def report(self, line: str) -> None:
        """Add a line to the run's log."""

    def roster(self) -> bytes | None:
        """Return the federation's roster as it is now, for secure sums; None where devices do not know each other."""


@dataclass(frozen=True)
class _Query:
    """A node that was asked which clients it hosts.

    Attributes:
        node: Flower's id of the node.
        started: when the node was started, as Flower says.
        asked: when it was asked, by the monotonic clock.
        deadline: until when it may answer, by the same clock.
        last: number of the order up to which it was asked for residuals; None if it was not.
    """

    node: int
    started: str
    asked: float
    deadline: float
    last: int | None


class ClientDirectory:
    """Knows which node hosts which client.

    A node is asked once, and again after it was restarted or when it is silent for ten times as long as others needed.
    (Flower may lose a query while another run ends.) Its answer is valid while the node is alive. If several nodes host
    the same client, the first one is used, and the next one after the first has died. Over real devices the operator's
    records decide which clients a node may host; a node that claims others takes no part.

    Attributes:
        current: the hosts of the clients that were available when `available` was last called.
    """

    def __init__(
        self,
        grid: Grid,
        nodes: LiveNodes,
        settings: RoundSettings,
        *,
        report: Callable[[str], None],
        devices: DeviceRecords | None = None,
        residuals: ResidualNotes | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Make the directory of a run.

        Args:
            grid: Flower's grid.
            nodes: the nodes of the run.
            settings: of the run's rounds.
            report: adds a line to the run's log.
            devices: the operator's records; None where nodes are believed, as in a simulation.
            residuals: what clients should have on their disks; None without error feedback.
            clock: what time it is.
        """
        self._grid = grid
        self._nodes = nodes
        self._settings = settings
        self._report = report
        self._devices = devices
        self._residuals = residuals
        self._clock = clock or Clock()
        self._started: dict[int, str] = {}  # nodes that have answered or never will, and when they were started
        self._queries: dict[str, _Query] = {}  # without an answer, by the id of the message
        self._patience = RoundTimeout(None)  # how long a node may be silent before it is asked again
        self._offers: dict[int, tuple[Integers, Integers]] = {}  # clients and their samples, by node
        self._offered = np.zeros(settings.clients, np.bool_)  # clients that any node has ever hosted
        self._refused: dict[int, str] = {}
        self._refusals: list[str] = []
        self._columns: dict[int, str] = {}  # checksums of the nodes' own columns
        self._common: str | None = None  # that of the run, once it has begun
        self._shares: set[int] = set()  # values of num-partitions that nodes have sent
        self.current: HostTable = host_table(0, [])

    def report(self, line: str) -> None:
        """Add a line to the run's log."""
        self._report(line)

    def roster(self) -> bytes | None:
        """Return the signed roster beside the operator's records, see `Directory`."""
        return None if self._devices is None else self._devices.roster()

    def find(self) -> HostTable:
        """Wait until the run can start, and return the hosts of all clients that take part.

        A run starts when every client is hosted, or refused by its node because of its data or of the code that it is
        asked to run. With `min_clients` a run also starts when at least that many clients are hosted and no further
        node has connected for `node_timeout` seconds.

        Raises:
            RunError: too few clients are hosted when no further node has connected for `node_timeout` seconds, or no
                client takes part. A connected node may take `round_timeout` seconds to answer, or an hour if that is
                null. Or clients have lost residuals, or tables with different columns.
        """
        least = self._settings.min_clients
        if self._devices is not None and (left := sorted(self._devices.left(self._settings.clients))):
            self._refused |= dict.fromkeys(left, "its device has left the federation")
            self.report(
                f"{names(left)} {'takes' if len(left) == 1 else 'take'} no part: no device has this number any more"
            )
        self.current = self._wait(least or 1, all_clients=True, fewer_suffice=least is not None)
        self._must_have_same_columns()
        if self._residuals is not None:
            self._residuals.begin()
        if len(self.current) < self._settings.clients_per_round:
            per_round, count = self._settings.clients_per_round, len(self.current)
            self.report(f"clients_per_round={per_round}: only {count} clients take part")
        return self.current

    def available(self) -> HostTable:
        """Return the hosts of the clients that are available at the beginning of a round.

        If fewer than `min_clients` are available, or none, the call waits for more as `find` does.

        Raises:
            RunError: no further node has connected in time.
        """
        if self._nodes.steady:
            return self.current
        before = self.current
        self.poll()
        self.current = self._hosts()
        if len(self.current) < (self._settings.min_clients or 1):
            self._report_changes(before)
            before = self.current
            timeout = self._settings.node_timeout
            self.report(f"{len(before)} clients are available; waiting up to {timeout:g} s for each further node")
            self.current = self._wait(self._settings.min_clients or 1, all_clients=False, fewer_suffice=True)
        self._report_changes(before)
        return self.current

    def _report_changes(self, before: HostTable) -> None:
        """Log which nodes have connected and disconnected, one line per node."""
        changed: dict[tuple[int | None, int | None], list[int]] = {}
        for client in sorted(before.keys() | self.current.keys()):
            old, new = before.get(client), self.current.get(client)
            last, now = (None if host is None else host.node_id for host in (old, new))
            if now != last:
                changed.setdefault((last, now), []).append(client)
        for (last, now), clients in changed.items():
            if now is None:
                gone = f"{self._name(last)} has disconnected"
                self.report(f"{gone}: {names(clients)} {_is(clients)} unavailable until another node hosts it")
            elif last is None:
                self.report(f"{self._name(now)} has connected: {names(clients)} will take part from now on")
            else:
                gone = f"{self._name(last)} has disconnected"
                self.report(f"{gone}: {names(clients)} {_is(clients)} on {self._name(now)} from now on")

    def _wait(self, least: int, *, all_clients: bool, fewer_suffice: bool) -> HostTable:
        """Poll until enough clients are hosted.

        Args:
            least: number of clients that must be hosted.
            all_clients: whether all clients must be hosted that are not refused.
            fewer_suffice: whether `least` clients are enough once no node has connected for `node_timeout` seconds.
        """
        settings, last_news, waits_for_answers = self._settings, self._clock.monotonic(), False
        while True:
            if self.poll():
                last_news = self._clock.monotonic()
            hosts = self._hosts()
            absent = np.setdiff1d(np.arange(settings.clients), hosts.clients, assume_unique=True)
            missing = [client for client in absent.tolist() if client not in self._refused]
            if len(hosts) >= least and not (all_clients and missing):
                return hosts
            if not missing and not fewer_suffice:
                raise RunError(f"clients={settings.clients}: none takes part{self._first_refusal}", code="no-clients")
            if self._clock.monotonic() - last_news > settings.node_timeout:
                if fewer_suffice and len(hosts) >= least:
                    self.report(
                        f"{len(hosts)} of {settings.clients} clients are available; others may join in any round"
                    )
                    return hosts
                if not self._queries:
                    raise RunError(self._too_few(hosts, missing), code="too-few-clients")
                if not waits_for_answers:
                    waits_for_answers = True
                    self.report(
                        f"waiting up to {settings.answer_timeout:g} s for the answers of {len(self._queries)} "
                        "connected nodes"
                    )
            self._clock.sleep(_POLL_SECONDS)

    def _too_few(self, hosts: HostTable, missing: list[int]) -> str:
        settings = self._settings
        connected = (
            f"with {len(self._nodes.alive)} nodes connected for {settings.node_timeout:g} s{self._first_refusal}"
        )
        if settings.min_clients is not None:
            return f"min_clients={settings.min_clients}: {len(hosts)} are available, {connected}; start more nodes"
        if not missing:
            return f"clients={settings.clients}: none takes part{self._first_refusal}"
        numbers = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        return (
            f"clients={settings.clients}: {len(missing)} are on no node ({numbers}), {connected}; start more "
            "nodes, take fewer clients, or set min_clients to the number that is enough"
        )

    @property
    def _first_refusal(self) -> str:
        return f"; a node answered: {self._refusals[0]}" if self._refusals else ""

    def _hosts(self) -> HostTable:
        """Return the host of each client that has one: the first of its nodes that is alive."""
        alive = self._nodes.alive
        offers = [(node, *offer) for node, offer in self._offers.items() if alive.get(node) == self._started.get(node)]
        return host_table(self._settings.clients, offers)

    def poll(self) -> bool:
        """Update the live nodes, query new ones, and read answers; return whether anything has changed.

        It does not wait, and may be called during a round: nodes that connect then are ready for the next round.
        """
        self._nodes.poll()
        for node in [node for node in self._started if not self._still_valid(node)]:
            del self._started[node]
            self._offers.pop(node, None)
        asked = {query.node for query in self._queries.values()}
        new = [node for node in sorted(self._nodes.alive) if node not in self._started and node not in asked]
        return self._query(new[: max(0, _MAX_QUERIES - len(asked))]) | self._read_answers() | self._ask_again()

    def _ask_again(self) -> bool:
        """Ask live nodes again whose last query has had no answer for long, and return whether there are any.

        The time from one query to the next doubles.
        """
        if self._nodes.steady:
            return False
        newest = {query.node: query for query in self._queries.values()}  # later queries come last
        asked = Counter(query.node for query in self._queries.values())
        now, patience = self._clock.monotonic(), self._patience.seconds
        late = {node: now - patience * 2 ** (count - 1) for node, count in asked.items()}
        silent = [node for node, query in newest.items() if query.asked < late[node] and node in self._nodes.alive]
        for node in silent:
            seconds = self._clock.monotonic() - newest[node].asked
            self.report(f"{self._name(node)} has not said which clients it hosts for {seconds:.0f} s; asking again")
        return self._query(silent)

    def _still_valid(self, node: int) -> bool:
        """Return whether the answer of a node is still valid."""
        running = self._nodes.alive.get(node)
        return node in self._nodes.listed if running is None else running == self._started[node]

    def _query(self, nodes: Iterable[int]) -> bool:
        """Send nodes the run's configuration and ask which clients they host; return whether there are any.

        A node that is asked again has no more time than before.
        """
        last = None if self._residuals is None else self._residuals.last
        content = query_content(self._settings.config, last)
        messages = [Message(content, dst_node_id=node, message_type="query") for node in nodes]
        now = self._clock.monotonic()
        deadlines = {query.node: query.deadline for query in self._queries.values()}
        if messages:
            self._grid.push_messages(messages)
        for message in messages:
            node = message.metadata.dst_node_id
            deadline = deadlines.get(node, now + self._settings.answer_timeout)
            self._queries[message.metadata.message_id] = _Query(node, self._nodes.alive[node], now, deadline, last)
        return bool(messages)

    def _read_answers(self) -> bool:
        """Read the answers that have arrived; return whether there are any."""
        replies = list(self._grid.pull_messages(list(self._queries))) if self._queries else []
        for reply in replies:
            query = self._queries.get(reply.metadata.reply_to_message_id)
            if query is not None and (reply.has_error() or reply.metadata.src_node_id == query.node):
                self._forget(query.node)
                self._patience.note(self._clock.monotonic() - query.asked)
                self._started[query.node] = query.started
                self._add(query.node, read_hosted(reply), query.last)
        for message, query in list(self._queries.items()):
            if message not in self._queries:
                continue
            running = self._nodes.alive.get(query.node, query.started)
            if running != query.started or query.node not in self._nodes.listed:
                del self._queries[message]  # it is asked again when it is back
            elif self._clock.monotonic() > query.deadline:
                self._forget(query.node)
                self._started[query.node] = query.started
                self._add(query.node, Hosted({}, "has not answered within round_timeout"))
        return bool(replies)

    def _forget(self, node: int) -> None:
        """Wait for no answer of a node any more."""
        self._queries = {message: query for message, query in self._queries.items() if query.node != node}

    @property
    def hosted_count(self) -> int:
        """The number of clients that any node has hosted since the run began, or was resumed."""
        return int(np.count_nonzero(self._offered))

    def device_of(self, client: int) -> str:
        """Return the name of the device that hosts a client; that of the client where no record names its device."""
        host = self.current.get(client)
        record = None if self._devices is None or host is None else self._devices.find(host.node_id)
        return f"client {client}" if record is None else record.name

    def _name(self, node: int | None) -> str:
        """Return the name of a node in the log, with that of its device."""
        record = None if self._devices is None or node is None else self._devices.find(node)
        return f"node {node}" if record is None else f"node {node} ({record.name})"

    def _recorded(self, node: int, hosted: Hosted) -> Hosted:
        """Return a node's answer if the operator's records allow what it claims, else a refusal of its own clients."""
        if self._devices is None:
            return hosted
        record = self._devices.find(node)
        if record is None:
            return Hosted({}, f"its key is of no device in {self._devices.path.name}")
        own = record.clients(self._settings.clients)
        others = [client for client in hosted.samples if client not in own]
        refusal = hosted.refusal
        if others and refusal is None:
            refusal = f"it claims {names(others)}, and its key is registered for {names(own) or 'no client'}"
        return hosted if refusal is None else Hosted(dict.fromkeys(own, 0), refusal)

    def _of_same_columns(self, node: int, hosted: Hosted) -> Hosted:
        """Note the columns of a node, and return its answer, or a refusal if the run has begun with others."""
        if hosted.columns is None or hosted.refusal is not None:
            return hosted
        self._columns[node] = hosted.columns
        if self._common is None or hosted.columns == self._common:
            return hosted
        return Hosted(dict.fromkeys(hosted.samples, 0), f"{_OTHER_COLUMNS} those of the other devices; {_NAME_COLUMNS}")

    def _must_have_same_columns(self) -> None:
        """Check that the tables of all nodes have the same columns, where the run names none.

        Raises:
            RunError: they have different ones.
        """
        nodes: dict[str, list[int]] = {}
        hosts = (self.current[client].node_id for client in (self.current if self._columns else ()))
        for node in dict.fromkeys(hosts):
            if node in self._columns:
                nodes.setdefault(self._columns[node], []).append(node)
        if len(nodes) > 1:
            first, other = (some[0] for some in list(nodes.values())[:2])
            named = f"{self._name(other)} ({names(self._offers[other][0])})"
            reason = f"{named}: {_OTHER_COLUMNS} those of {self._name(first)}; {_NAME_COLUMNS}"
            raise RunError(reason, code="columns", key="dataset.feature_columns")
        self._common = next(iter(nodes), None)

    def _refuse(self, node: int, hosted: Hosted) -> None:
        """Record why a node takes no part."""
        reason = str(hosted.refusal)
        self._refusals.append(reason)
        for client in hosted.samples:
            if 0 <= client < self._settings.clients:
                self._refused.setdefault(client, reason)
        one = len(hosted.samples) == 1
        clients = f"{names(hosted.samples) or 'its clients'} {'does' if one else 'do'}"
        if len(self._refusals) <= _MAX_REFUSAL_LINES:
            self.report(f"{self._name(node)}: {clients} not take part: {reason}")
        elif len(self._refusals) == _MAX_REFUSAL_LINES + 1:
            self.report("further nodes that do not take part are not listed")

    def _add(self, node: int, hosted: Hosted, last: int | None = None) -> None:
        """Register the clients of a node, which was asked for residuals of orders up to `last`."""
        if len(hosted.samples) > self._settings.clients:
            hosted = Hosted(
                {}, f"it claims to host {len(hosted.samples)} clients, but the run has {self._settings.clients}"
            )
        hosted = self._of_same_columns(node, self._recorded(node, hosted))
        if hosted.refusal is not None:
            self._refuse(node, hosted)
            return
        if hosted.nodes is not None and self._shares and hosted.nodes not in self._shares:
            self.report(
                f"{self._name(node)}: num-partitions={hosted.nodes}, where others say {min(self._shares)}; clients are "
                "shared out as intended only if all nodes say the same"
            )
        self._shares.update(() if hosted.nodes is None else [hosted.nodes])
        known = {client: n for client, n in hosted.samples.items() if 0 <= client < self._settings.clients}
        valid = {client: n for client, n in known.items() if n > 0}
        self._refused |= dict.fromkeys(known.keys() - valid.keys(), "it has no rows")
        clients = np.fromiter(valid, np.int64)
        hosts = self._hosts() if self._offered[clients].any() else host_table(0, [])
        elsewhere = np.intersect1d(clients, hosts.clients)
        if self._residuals is not None and last is not None:
            self._residuals.check(np.setdiff1d(clients, elsewhere).tolist(), hosted.kept, last)
        self._offers[node] = clients, np.fromiter((min(n, _MAX_SAMPLES) for n in valid.values()), np.int64)
        self._offered[clients] = True
        if len(elsewhere):
            first = hosts[elsewhere[0]].node_id
            self.report(
                f"{self._name(node)}: {names(elsewhere)} {_is(elsewhere)} already on node {first}; this node is asked "
                "only if that one disconnects (set another partition-id if it has other data)"
            )


def _is(clients: Sized) -> str:
    return "is" if len(clients) == 1 else "are"


def names(clients: Iterable[int]) -> str:
    """Name the first clients of several, for a line of the log."""
    clients = list(clients)
    return ", ".join(f"client {client}" for client in clients[:5]) + (", ..." if len(clients) > 5 else "")
