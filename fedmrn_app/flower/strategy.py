"""Flower's strategy for every method: it decodes masked noise, or any other update, and averages it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.exchange.channel import Answer, Channel, ReplyPolicy
from fedmrn_app.exchange.content_size import content_bytes
from fedmrn_app.exchange.liveness import LiveNodes
from fedmrn_app.exchange.messages import by_request, pack_state, read_payload_of, unpack_state
from fedmrn_app.exchange.orders import OrderRequest, OrderSender
from fedmrn_app.exchange.timeouts import FIRST_TIMEOUT, MAX_FAILING, FailureLimit, RoundTimeout
from fedmrn_app.federation.downlinks import downlink_of
from fedmrn_app.federation.protocol import GlobalState, RunProtocol
from fedmrn_app.federation.report import RoundReport, TooFewError
from fedmrn_app.federation.sampling import sample_others, shuffle
from fedmrn_app.federation.server import OpenRound, RoundPrivacy, close_round, open_round
from fedmrn_app.federation.upload import max_payload_bytes
from fedmrn_app.flower.client_directory import ClientDirectory, Directory
from fedmrn_app.flower.pace import pace_of
from fedmrn_app.flower.parts import free_messages
from fedmrn_app.flower.round_settings import RoundSettings

_log = logging.getLogger("flwr")


@dataclass(frozen=True)
class FinishedRound:
    """A closed round.

    Attributes:
        state: the new global model.
        report: what happened.
        uplink: bytes of each reply that was used, with Flower's framing.
        downlink: bytes sent to each client that was asked, in all messages to it.
        rejected_uplink: bytes of all replies that were read and not used.
    """

    state: GlobalState
    report: RoundReport
    uplink: Sequence[int]
    downlink: Sequence[int]
    rejected_uplink: int


@dataclass
class _Round:
    """A round in progress: the answers so far, of clients that were asked first and of those that took their place."""

    opened: OpenRound
    sender: OrderSender
    answers: dict[int, Answer] = field(default_factory=dict)
    messages: dict[int, Message] = field(default_factory=dict)  # that another loop than `start` sends
    downlink: dict[int, int] = field(default_factory=dict)
    uplink: int = 0  # bytes of all replies, usable and rejected
    earlier: list[RoundReport] = field(default_factory=list)  # of the same round, with too few replies
    late: Sequence[int] = ()

    def note(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            client = answer.request.client
            self.answers[client] = answer
            self.uplink += answer.uplink_bytes
            if answer.downlink_bytes:  # a request that was never sent has none
                self.downlink[client] = self.downlink.get(client, 0) + answer.downlink_bytes

    def read_early(self, answer: Answer) -> None:
        """Decode a payload while the round waits for others."""
        if isinstance(answer.payload, bytes):
            self.opened.read_early(answer.request.client, answer.payload)

    def release(self) -> None:
        """Free the memory of the replies, and of what the round has computed, once it is closed."""
        self.answers.clear()
        self.opened.release()

    def payloads(self) -> dict[int, bytes | PayloadError]:
        """Return payloads, and why there is none, of the clients that the round asks."""
        found = {client: self.answers[client].payload for client in self.opened.clients if client in self.answers}
        return {client: payload for client, payload in found.items() if payload is not None}


class PayloadStrategy(Strategy):
    """Asks clients, checks what they send, and averages what is usable.

    The run's seed draws the clients of a round, not the node ids, which differ in every run. Replies are summed in the
    order of the client numbers, weighted by the sample counts that the nodes announced. A reply that is not exactly
    what was asked for is refused with its reason.

    With `oversample` a round asks more clients than it uses, and closes with the first usable replies that are enough.
    With fewer usable replies than `min_replies` it continues with other clients and keeps the usable replies. Clients
    are drawn from those that are available when the round begins; a client whose node dies during the round is not
    replaced.

    The arrays that `start` takes and returns are those of `pack_state`. Another loop may call `configure_train` and
    `aggregate_train` itself; nobody is asked again then.

    Args:
        protocol: what server and clients know before the first round, the run's seed among it.
        settings: how clients are found and asked.
        directory: knows which node hosts which client; None to ask the nodes of the grid.
        channel: sends and receives; None for a new one on the grid.
        timeout: how long replies may take; None for the timeout of `start`.
        finished_rounds: number of rounds before a resumed run.
        privacy: of the run; None where no noise is added.

    Attributes:
        last: the round that was closed last.
    """

    def __init__(
        self,
        protocol: RunProtocol,
        settings: RoundSettings,
        *,
        directory: Directory | None = None,
        channel: Channel | None = None,
        timeout: RoundTimeout | None = None,
        finished_rounds: int = 0,
        privacy: RoundPrivacy | None = None,
    ) -> None:
        self.protocol = protocol
        self.settings = settings
        self.versions = downlink_of(protocol).new_versions() if settings.memory else None
        self.finished_rounds = finished_rounds
        self.last: FinishedRound | None = None
        self._directory = directory
        self._channel = channel
        self._timeout = timeout
        self._privacy = privacy
        self._limit = FailureLimit()
        self._round: _Round | None = None
        self._state: tuple[ArrayRecord, GlobalState] | None = None  # the last arrays, and what they were packed from

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
        """Train up to round `num_rounds`.

        Args:
            grid: any grid of Flower's.
            initial_arrays: the global state before the next round, see `pack_state`.
            num_rounds: number of the last round; a resumed run counts those before.
            timeout: seconds that replies may take, where the strategy was not given another limit.
            train_config: not used; clients have the run's configuration.
            evaluate_config: not used; the global model is evaluated on the server.
            evaluate_fn: called with a round's number and its arrays, before the first round and after each.

        Raises:
            RunError: the new global model is not finite, too few clients are available, or most clients failed for the
                third time in a row in a run that is not private.
            BudgetSpent: a further round would exceed privacy.epsilon.
        """
        self._timeout = self._timeout or RoundTimeout(timeout)
        result = Result(arrays=initial_arrays)
        del initial_arrays  # which may be large

        def evaluate(number: int) -> None:
            metrics = None if evaluate_fn is None else evaluate_fn(number, result.arrays)
            if metrics is not None:
                result.evaluate_metrics_serverapp[number] = metrics

        evaluate(self.finished_rounds)
        for number in range(self.finished_rounds + 1, num_rounds + 1):
            self.configure_train(number, result.arrays, train_config or ConfigRecord(), grid)
            result.arrays, result.train_metrics_clientapp[number] = self._finish_round(number)
            evaluate(number)
        return result

    def _finish_round(self, number: int) -> tuple[ArrayRecord, MetricRecord]:
        """Ask the clients of the open round, and others where too few of them have usable replies."""
        current, directory = self._current, self._connected[0]
        clients = list(current.opened.clients)
        if self.settings.oversample > 1:  # the first replies count, so chance must decide who is asked first
            clients = shuffle(clients, self.protocol.seed, number)
        while True:
            enough = self._ask(current, clients)
            current.late = [one for one in current.opened.clients if one not in current.payloads()] if enough else []
            try:
                return self.aggregate_train(number, ())
            except TooFewError as few:
                current.earlier.append(few.report)
                self._limit.count += 1
                if self._limit.count >= MAX_FAILING:
                    reason = f"{few}, as others before; fix the cause, then continue with resume=true"
                    raise RunError(reason, code="clients-fail") from None
                clients = self._replace_clients(current, few.report, len(current.earlier))
                directory.report(f"{few}; the round continues with {len(clients)} other clients")

    def _connect(self, grid: Grid) -> None:
        """Find the clients, where the strategy was given neither a directory nor a channel."""
        if self._directory is None or self._channel is None:
            nodes = LiveNodes(grid)
            directory = ClientDirectory(grid, nodes, self.settings, report=_log.info)
            self._channel = Channel(
                grid, nodes, refresh=directory.poll, max_payload_bytes=max_payload_bytes(self.protocol),
                report=_log.info, **pace_of(grid),
            )  # fmt: skip
            directory.find()
            self._directory = directory

    @property
    def channel(self) -> Channel:
        """What sends and receives, once there is one."""
        return self._connected[1]

    @property
    def _connected(self) -> tuple[Directory, Channel]:
        assert self._directory is not None, "configure_train connects"
        assert self._channel is not None, "configure_train connects"
        return self._directory, self._channel

    @property
    def _current(self) -> _Round:
        assert self._round is not None, "configure_train opens a round"
        return self._round

    def _open(self, state: GlobalState, number: int) -> _Round:
        """Draw the clients of a round."""
        samples = self._connected[0].available().samples
        count = self.settings.asked(self.settings.clients_per_round)
        opened = open_round(self.protocol, state, number, samples, count, versions=self.versions, privacy=self._privacy)
        packed = self._state[0] if self._state is not None and self._state[1] is state else None
        return _Round(opened, OrderSender(opened, self.settings.config, packed))

    def _requests(self, current: _Round, clients: Iterable[int]) -> list[OrderRequest]:
        hosts = self._connected[0].current
        return [OrderRequest(current.sender, client, hosts[client].node_id) for client in clients]

    def _ask(self, current: _Round, clients: Sequence[int]) -> bool:
        """Ask clients; return whether the round has all the replies that it uses, so that others are late."""
        channel, timeout = self._connected[1], self._timeout or RoundTimeout(None)
        kept = sum(isinstance(payload, bytes) for payload in current.payloads().values())
        oversampled = self.settings.oversample > 1
        needed = max(0, self.settings.clients_per_round - kept) if oversampled else None
        policy = ReplyPolicy(needed, timeout.seconds)
        answers = channel.ask(self._requests(current, clients), policy, current.read_early)
        current.note(answers)
        timeout.note(max((answer.seconds for answer in answers), default=0.0))
        usable = sum(isinstance(payload, bytes) for payload in current.payloads().values())
        return oversampled and usable >= self.settings.clients_per_round

    def _replace_clients(self, current: _Round, report: RoundReport, repeat: int) -> list[int]:
        """Continue a round of too few replies with other clients, and return them."""
        opened, used = current.opened, report.used_clients
        if self.versions is not None:
            self.versions.forget(opened.clients.keys() - set(used))
        samples = self._connected[0].available().samples
        available = np.fromiter(samples, np.int64, len(samples))
        count = self.settings.asked(max(1, self.settings.clients_per_round - len(used)))
        asked = current.downlink
        chosen = sample_others(
            available, asked, used, count, seed=self.protocol.seed, server_round=opened.number, repeat=repeat
        )
        current.answers = {client: current.answers[client] for client in used}
        kept = {client: opened.clients[client] for client in used}
        opened.replace_clients(kept | {client: samples[client] for client in chosen})
        return chosen

    def _close(self, current: _Round) -> FinishedRound:
        """Average the usable replies.

        Raises:
            TooFewError: fewer than `min_replies` are usable.
            RunError: the new model is not finite, or most clients failed for the third time in a row in a run that is
                not private.
        """
        opened, payloads = current.opened, current.payloads()
        state, report = close_round(opened, payloads, min_replies=self.settings.min_replies, late=current.late)
        used = set(report.used_clients)
        failed_now = {reply.client for reply in report.failed}
        before = {one.client: one for closed in current.earlier for one in closed.failed}
        report.failed[:0] = [one for client, one in before.items() if client not in used | failed_now]
        uplink = [current.answers[client].uplink_bytes for client in report.used_clients]
        rejected = current.uplink - sum(uplink)
        finished = FinishedRound(state, report, uplink, list(current.downlink.values()), rejected)
        if self._privacy is None:  # the end of a private run must not depend on what clients do
            self._limit.note(report)
        elif line := self._limit.reached(report):
            reason = "a private run continues, because ending it would reveal which clients failed; fix the cause"
            self._connected[0].report(f"{line}; {reason}")
        return finished

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterator[Message]:
        """Open a round, and return the messages that ask its clients, each with a seed of its own.

        The messages are made when they are read. `start` does not read them, because a channel makes its own.

        Raises:
            BudgetSpent: the round would exceed privacy.epsilon.
        """
        self._connect(grid)
        if self._state is None or self._state[0] is not arrays:
            self._state = arrays, unpack_state(arrays)
        self._round = self._open(self._state[1], server_round)
        return self._messages(self._round)

    def _messages(self, current: _Round) -> Iterator[Message]:
        for request in self._requests(current, current.opened.clients):
            content = request.content()
            current.downlink[request.client] = content_bytes(content)
            current.messages[request.client] = Message(content, request.node, "train", group_id=request.group)
            yield current.messages[request.client]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord, MetricRecord]:
        """Decode the replies and close the round.

        Args:
            server_round: number of the round.
            replies: to the messages of `configure_train`; those that `start` has received are known already.

        Returns:
            The new global state, see `pack_state`, and the numbers of used and failed replies with their mean bytes.

        Raises:
            TooFewError: too few replies are usable.
            RunError: the new global model is not finite, or most clients failed for the third time in a row.
        """
        current = self._current
        current.note(self._answers(current, replies))
        return self._closed(self._close(current))

    def _closed(self, finished: FinishedRound) -> tuple[ArrayRecord, MetricRecord]:
        """Keep a closed round, and return its state and metrics."""
        if self._round is not None:
            self._round.release()
            self._round = None
        free_messages(4 * finished.state.vector.size)
        packed = pack_state(finished.state)
        self.last = finished = replace(finished, state=unpack_state(packed))  # views of the arrays' bytes
        self._state = packed, finished.state
        report, uplink, downlink = finished.report, finished.uplink, finished.downlink
        metrics = MetricRecord({
            "replies": len(report.used),
            "failures": len(report.failed),
            "uplink_bytes": float(np.mean(uplink)) if uplink else 0.0,
            "downlink_bytes": float(np.mean(downlink)) if downlink else 0.0,
        })  # fmt: skip
        return packed, metrics

    def _answers(self, current: _Round, replies: Iterable[Message]) -> Iterator[Answer]:
        """Read the replies to the messages of `configure_train`."""
        by_message = by_request(replies)
        for request in self._requests(current, current.messages):
            reply = by_message.get(current.messages[request.client].metadata.message_id)
            if reply is None:
                continue
            try:
                payload: bytes | PayloadError = read_payload_of(reply, request.node)
            except PayloadError as error:
                payload = error
            size = 0 if reply.has_error() else content_bytes(reply.content)
            yield Answer(request, payload, uplink_bytes=size)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages: the global model is evaluated on the server."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return nothing: the global model is evaluated on the server."""
        return None

    def summary(self) -> None:
        """Log nothing beyond the run's own lines."""
