"""Buffered asynchronous training over Flower's messages: a fixed number of clients trains at any time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.exchange.channel import Answer, Channel
from fedmrn_app.exchange.orders import OrderRequest, OrderSender
from fedmrn_app.exchange.timeouts import MAX_FAILING, FailureLimit, RoundTimeout
from fedmrn_app.federation.fedbuff import FedBuff, version_of
from fedmrn_app.federation.report import FailedReply
from fedmrn_app.flower.client_directory import Directory
from fedmrn_app.flower.host_table import HostTable
from fedmrn_app.flower.strategy import FinishedRound


@dataclass(frozen=True, kw_only=True)
class AsyncSettings:
    """How an asynchronous run asks clients.

    Attributes:
        concurrency: number of clients that train at any time.
        buffer: number of usable replies that make a version.
        config: the run's configuration, for nodes that have lost it.
    """

    concurrency: int
    buffer: int
    config: bytes


class AsyncLoop:
    """Asks clients, and adds their replies to the global model, `buffer` replies at a time."""

    def __init__(self, fedbuff: FedBuff, directory: Directory, settings: AsyncSettings, timeout: RoundTimeout) -> None:
        """Make the loop.

        Args:
            fedbuff: the versions of the model and the buffer.
            directory: knows which node hosts which client.
            settings: how clients are asked.
            timeout: how long a client may take.
        """
        self._fedbuff = fedbuff
        self._directory = directory
        self._settings = settings
        self._timeout = timeout
        self._limit = FailureLimit("version")
        self._training: set[int] = set()
        self._senders: dict[int, OrderSender] = {}  # by the number of the order, of the latest version
        self._reset()

    def _reset(self) -> None:
        """Start to count for the next version."""
        self._failed: list[FailedReply] = []
        self._downlink: list[int] = []
        self._uplink: dict[int, int] = {}  # by the identity of the buffered reply
        self._uplink_bytes = 0  # of all replies, usable and rejected
        self._slowest = 0.0

    def versions(self, channel: Channel, last: int) -> Iterator[FinishedRound]:
        """Train until there are `last` versions, and yield each one when it is made.

        Raises:
            RunError: a version is not finite, or most clients fail.
        """
        fedbuff, buffer = self._fedbuff, self._settings.buffer
        hosts = self._directory.available()
        while fedbuff.version < last:
            self._ask(channel, hosts)
            before = fedbuff.version
            for answer in channel.receive():
                self._take(answer)
                if len(fedbuff.buffer) == buffer and fedbuff.version < last:
                    yield self._flush()
                    self._ask(channel, hosts)
            if fedbuff.version > before:
                hosts = self._directory.available()
            elif len(self._failed) >= MAX_FAILING * buffer:
                self._end(f"{len(self._failed)} replies were refused while {len(fedbuff.buffer)} were usable")
            else:
                channel.pause()
        channel.discard()

    def _ask(self, channel: Channel, hosts: HostTable) -> None:
        """Ask as many clients as may train in addition to those that train already."""
        drawn = self._fedbuff.draw(hosts.clients, self._training, self._settings.concurrency - len(self._training))
        requests = []
        for client in drawn:
            opened = self._fedbuff.open(client, hosts[client].samples)
            sender = self._senders.setdefault(opened.number, OrderSender(opened, self._settings.config))
            requests.append(OrderRequest(sender, client, hosts[client].node_id))
        self._training.update(drawn)
        if requests:
            channel.send(requests, self._timeout.seconds)

    def _take(self, answer: Answer) -> None:
        """Put a reply into the buffer, or record why not."""
        client = answer.request.client
        self._training.discard(client)
        self._downlink.append(answer.downlink_bytes)
        self._uplink_bytes += answer.uplink_bytes
        assert isinstance(answer.request, OrderRequest)
        try:
            if not isinstance(answer.payload, bytes):
                raise answer.payload or PayloadError("no reply")
            reply = self._fedbuff.add(client, answer.request.sender.opened.number, answer.payload)
        except PayloadError as error:
            self._failed.append(FailedReply(client, str(error)))
            self._directory.report(f"version {self._fedbuff.version + 1}: client {client} rejected: {error}")
            return
        self._uplink[id(reply)] = answer.uplink_bytes
        self._slowest = max(self._slowest, answer.seconds)

    def _flush(self) -> FinishedRound:
        """Make the next version."""
        report, used = self._fedbuff.flush()
        for reply in report.failed:
            self._directory.report(f"version {report.number}: client {reply.client}: {reply.reason}")
        report.failed[:0] = self._failed
        uplink = [self._uplink[id(reply)] for reply in used]
        rejected = self._uplink_bytes - sum(uplink)
        finished = FinishedRound(self._fedbuff.state, report, uplink, self._downlink, rejected)
        self._timeout.note(self._slowest)
        self._limit.note(report)
        self._reset()
        latest = self._fedbuff.version
        self._senders = {number: one for number, one in self._senders.items() if version_of(number) >= latest}
        return finished

    def _end(self, why: str) -> None:
        reasons = "; ".join(f"client {reply.client}: {reply.reason}" for reply in self._failed[-5:])
        version = self._fedbuff.version + 1
        raise RunError(
            f"version {version}: {why} ({reasons}); see to them, then go on with resume=true", code="clients-fail"
        )
