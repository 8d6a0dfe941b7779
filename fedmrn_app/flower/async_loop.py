"""Buffered asynchronous training over Flower's messages: a fixed number of clients trains at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.exchange.channel import Answer, Channel
from fedmrn_app.exchange.messages import pack_state, unpack_state
from fedmrn_app.exchange.orders import OrderRequest, OrderSender
from fedmrn_app.exchange.timeouts import FIRST_TIMEOUT, MAX_FAILING, FailureLimit, RoundTimeout
from fedmrn_app.federation.fedbuff import FedBuff, version_of
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.federation.report import FailedReply
from fedmrn_app.flower.client_directory import Directory
from fedmrn_app.flower.host_table import HostTable
from fedmrn_app.flower.round_settings import RoundSettings
from fedmrn_app.flower.strategy import FinishedRound


class AsyncStrategy(Strategy):
    """Asks clients, and adds their replies to the global model, `buffer` replies at a time (FedBuff).

    As many clients as a round of other strategies has train at any time. There are no rounds: `start` counts versions
    of the model, and the other halves of Flower's loop are refused.

    Args:
        protocol: what server and clients know before the first version.
        settings: how clients are found and asked.
        directory: knows which node hosts which client.
        channel: sends and receives.
        buffer: number of usable replies that make a version; None for `clients_per_round`.
        max_staleness: number of versions that a reply may be behind.
        timeout: how long a client may take.
        finished_rounds: number of versions before a resumed run.

    Attributes:
        last: the version that was made last.
    """

    def __init__(
        self,
        protocol: RunProtocol,
        settings: RoundSettings,
        *,
        directory: Directory,
        channel: Channel,
        buffer: int | None = None,
        max_staleness: int = 16,
        timeout: RoundTimeout | None = None,
        finished_rounds: int = 0,
    ) -> None:
        self.last: FinishedRound | None = None
        self._protocol = protocol
        self._settings = settings
        self._directory = directory
        self._channel = channel
        self._buffer = buffer or settings.clients_per_round
        self._max_staleness = max_staleness
        self._timeout = timeout
        self._finished = finished_rounds
        self._limit = FailureLimit("version")
        self._training: set[int] = set()
        self._senders: dict[int, OrderSender] = {}  # by the number of the order, of the latest version
        self._reset()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = FIRST_TIMEOUT,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train until there are `num_rounds` versions; the arguments are those of `PayloadStrategy.start`.

        Raises:
            RunError: a version is not finite, or most clients fail.
        """
        self._timeout = self._timeout or RoundTimeout(timeout)
        self._fedbuff = FedBuff(self._protocol, unpack_state(initial_arrays), self._finished, self._max_staleness)
        result = Result(arrays=initial_arrays)
        if evaluate_fn is not None:
            evaluate_fn(self._finished, initial_arrays)
        for finished in self._versions(num_rounds):
            self.last = finished
            result.arrays = pack_state(finished.state)
            metrics = None if evaluate_fn is None else evaluate_fn(finished.report.number, result.arrays)
            if metrics is not None:
                result.evaluate_metrics_serverapp[finished.report.number] = metrics
        return result

    def configure_train(self, *args: Any, **more: Any) -> NoReturn:
        """Refuse to be called by another loop, which has rounds."""
        raise RunError("an asynchronous run has no rounds; call start", code="no-rounds")

    aggregate_train = configure_evaluate = aggregate_evaluate = configure_train

    def summary(self) -> None:
        """Log nothing beyond the run's own lines."""

    def _reset(self) -> None:
        """Start to count for the next version."""
        self._failed: list[FailedReply] = []
        self._downlink: list[int] = []
        self._uplink: dict[int, int] = {}  # by the identity of the buffered reply
        self._uplink_bytes = 0  # of all replies, usable and rejected
        self._slowest = 0.0

    def _versions(self, last: int) -> Iterator[FinishedRound]:
        """Train until there are `last` versions, and yield each one when it is made."""
        fedbuff, buffer, channel = self._fedbuff, self._buffer, self._channel
        hosts = self._directory.available()
        while fedbuff.version < last:
            self._ask(hosts)
            before = fedbuff.version
            for answer in channel.receive():
                self._take(answer)
                if len(fedbuff.buffer) == buffer and fedbuff.version < last:
                    yield self._flush()
                    self._ask(hosts)
            if fedbuff.version > before:
                hosts = self._directory.available()
            elif len(self._failed) >= MAX_FAILING * buffer:
                self._end(f"{len(self._failed)} replies were refused while {len(fedbuff.buffer)} were usable")
            else:
                channel.pause()
        channel.discard()

    def _ask(self, hosts: HostTable) -> None:
        """Ask as many clients as may train in addition to those that train already."""
        more = self._settings.clients_per_round - len(self._training)
        drawn = self._fedbuff.draw(hosts.clients, self._training, more)
        requests = []
        for client in drawn:
            opened = self._fedbuff.open(client, hosts[client].samples)
            sender = self._senders.setdefault(opened.number, OrderSender(opened, self._settings.config))
            requests.append(OrderRequest(sender, client, hosts[client].node_id))
        self._training.update(drawn)
        if requests:
            self._channel.send(requests, (self._timeout or RoundTimeout(None)).seconds)

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
        if self._timeout is not None:
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
            f"version {version}: {why} ({reasons}); fix the cause, then continue with resume=true", code="clients-fail"
        )
