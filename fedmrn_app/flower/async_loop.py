"""Buffered asynchronous rounds over Flower's messages: so many clients are always at work; nobody waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flwr.app import Message, Metadata

from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.federation.fedbuff import Buffered, BufferedReply
from fedmrn_app.federation.protocol import GlobalState
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.flower.channel import Channel
from fedmrn_app.flower.host_table import Host, HostTable
from fedmrn_app.flower.messages import content_bytes, order_content, read_lost, read_payload_of
from fedmrn_app.flower.traffic import Timeout, Traffic

FAILING = 3  # times as many replies as a buffer holds that fail before it is full, or full buffers of which most fail


@dataclass(frozen=True)
class InFlight:
    """A client at work: what it was asked for, how the message is named, since when, and until when it may reply."""

    client: int
    number: int
    metadata: Metadata
    begun: float
    deadline: float
    told_config: bool = False


class Asynchronous:
    """Asks clients, and adds what they send to the global model, `buffer` replies at a time.

    Attributes:
        traffic: what was sent since the last version, and the replies that made it, by their places.
        failures: likewise, why replies were refused.
    """

    def __init__(
        self,
        buffered: Buffered,
        exchange: Channel,
        hosts: Callable[[], HostTable],
        *,
        at_once: int,
        buffer: int,
        config: bytes,
        timeout: Timeout,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Make one.

        Args:
            buffered: the versions and the buffer.
            exchange: Flower's grid.
            hosts: who is there.
            at_once: how many clients are at work.
            buffer: how many usable replies make a version.
            config: the run's configuration, for nodes that have lost it.
            timeout: how long a client may take.
            report: is told in a line what is refused.
        """
        self.traffic = Traffic()
        self.failures: list[str] = []
        self._buffered, self._exchange, self._find_hosts = buffered, exchange, hosts
        self._at_once, self._buffer, self._config = at_once, buffer, config
        self._timeout, self._report = timeout, report
        self._tasks: dict[int, InFlight] = {}  # by client
        self._sizes: dict[int, int] = {}  # of the replies in the buffer, by the identity of each
        self._slowest, self._failing = 0.0, 0

    def run(self, versions: int, on_version: Callable[[GlobalState, RoundReport, list[BufferedReply]], None]) -> None:
        """Go on until there are so many versions.

        Args:
            versions: how many.
            on_version: is told the state after each version, what happened, and whose replies made it.

        Raises:
            RunError: a version is not finite, or most clients fail.
        """
        hosts = self._find_hosts()
        while self._buffered.version < versions:
            self._ask(hosts)
            before = self._buffered.version
            for reply in self._exchange.receive():
                self._take(hosts, reply)
                if len(self._buffered.buffer) == self._buffer and self._buffered.version < versions:
                    on_version(*self._flush())
                    self.traffic = Traffic()
                    self._ask(hosts)
            self._give_up()
            if self._buffered.version > before:
                hosts = self._find_hosts()
            elif len(self.failures) >= FAILING * self._buffer:
                self._end(f"{len(self.failures)} replies were refused while {len(self._buffered.buffer)} were usable")
            else:
                self._exchange.pause()
        self._exchange.forget()

    def _ask(self, hosts: HostTable) -> None:
        """Let as many clients be at work as are to be."""
        drawn = self._buffered.draw(hosts.clients, self._tasks, self._at_once - len(self._tasks))
        messages = [self._message(client, hosts[client]) for client in drawn]
        if messages:
            self._exchange.send(messages)

    def _message(self, client: int, host: Host, *, config: bool = False) -> Message:
        order = self._buffered.order(client, host.samples)
        content = order_content(order, None, self._config if config else None)
        seconds, now = self._timeout.seconds, time.monotonic()
        message = Message(content, host.node_id, "train", ttl=seconds + 60, group_id=str(self._buffered.version))
        self._tasks[client] = InFlight(client, order.server_round, message.metadata, now, now + seconds, config)
        self.traffic.downlink[len(self.traffic.downlink)] = content_bytes(content)
        return message

    def _take(self, hosts: Mapping[int, Host], reply: Message) -> None:
        """Put a reply into the buffer, or say why not."""
        message = reply.metadata.reply_to_message_id
        task = next((one for one in self._tasks.values() if one.metadata.message_id == message), None)
        if task is None:
            return  # it was given up
        del self._tasks[task.client]
        if read_lost(reply) == "configuration" and not task.told_config and task.client in hosts:
            self._exchange.send([self._message(task.client, hosts[task.client], config=True)])
            return
        try:
            one = self._buffered.add(task.client, task.number, read_payload_of(reply, task.metadata))
        except PayloadError as error:
            self._refuse(task.client, str(error))
            return
        self._sizes[id(one)] = content_bytes(reply.content)
        self._slowest = max(self._slowest, time.monotonic() - task.begun)

    def _give_up(self) -> None:
        """Give up clients whose nodes have died, and those that take too long."""
        lost, now = self._exchange.outcome.lost, time.monotonic()
        for task in list(self._tasks.values()):
            message = task.metadata.message_id
            reason = lost.pop(message, None)
            if reason is None and now > task.deadline:
                reason = "no reply within round_timeout"
                self._exchange.drop(message)
            if reason is not None:
                del self._tasks[task.client]
                self._refuse(task.client, reason)

    def _refuse(self, client: int, reason: str) -> None:
        self.failures.append(f"client {client}: {reason}")
        self._report(f"version {self._buffered.version + 1}: client {client} rejected: {reason}")

    def _flush(self) -> tuple[GlobalState, RoundReport, list[BufferedReply]]:
        report, used = self._buffered.flush()
        for reason in report.failures.values():
            self._report(f"version {report.number}: {reason}")
        failures = [*self.failures, *report.failures.values()]
        report.failures = dict(enumerate(failures))
        sizes = {place: self._sizes[id(one)] for place, one in enumerate(used)}
        self.traffic = Traffic(self.traffic.downlink, sizes)
        self._timeout.note(self._slowest)
        self._failing = self._failing + 1 if len(failures) > len(used) else 0
        if self._failing >= FAILING:
            self._end(f"most replies were refused for {FAILING} versions in a row")
        state = self._buffered.state
        self._sizes, self._slowest, self.failures = {}, 0.0, []
        return state, report, used

    def _end(self, why: str) -> None:
        reasons = "; ".join(self.failures[-5:])
        version = self._buffered.version + 1
        raise RunError(f"version {version}: {why} ({reasons}); see to them, then go on with resume=true")


def behind(used: list[BufferedReply], version: int) -> list[str]:
    """The clients whose replies made a version, with `-n` behind those that trained n versions before the last one."""
    found = [(one.client, version - 1 - one.version) for one in used]
    return [f"{client}-{n}" if n else str(client) for client, n in found]
