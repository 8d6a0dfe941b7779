"""Flower's strategy for every method: it decodes masked noise, or any other update, and averages it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.exchange.channel import Answer, Channel, ReplyPolicy
from fedmrn_app.exchange.messages import by_request, content_bytes, pack_state, read_payload_of, unpack_state
from fedmrn_app.exchange.orders import OrderRequest, OrderSender
from fedmrn_app.exchange.timeouts import MAX_FAILING, FailureLimit, RoundTimeout
from fedmrn_app.federation.downlinks import downlink_of
from fedmrn_app.federation.protocol import GlobalState, RunProtocol
from fedmrn_app.federation.report import RoundReport, TooFewError
from fedmrn_app.federation.sampling import sample_others, shuffle
from fedmrn_app.federation.server import OpenRound, RoundPrivacy, close_round, open_round
from fedmrn_app.flower.client_directory import Directory


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """What all rounds of a run have in common.

    Attributes:
        clients_per_round: number of replies that a round uses.
        config: the run's configuration, for nodes that have lost it.
        oversample: factor by which more clients are asked than a round uses.
        min_replies: number of usable replies below which a round continues with other clients.
        memory: whether clients keep the model that they were sent, and are sent what has changed since.
    """

    clients_per_round: int
    config: bytes
    oversample: float = 1.0
    min_replies: int = 1
    memory: bool = False

    def asked(self, replies: int) -> int:
        """Return the number of clients to ask for a number of replies."""
        return math.ceil(replies * self.oversample - 1e-9)


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
    messages: dict[int, Message] = field(default_factory=dict)  # only where Flower's loop sends them
    downlink: dict[int, int] = field(default_factory=dict)
    uplink: int = 0  # bytes of all replies, usable and rejected

    def note(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            client = answer.request.client
            self.answers[client] = answer
            self.uplink += answer.uplink_bytes
            if answer.downlink_bytes:  # a request that was never sent has none
                self.downlink[client] = self.downlink.get(client, 0) + answer.downlink_bytes

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

    `rounds` runs all rounds over a `Channel`. `configure_train` and `aggregate_train` are the same two halves of a
    round for Flower's own loop, without the repetitions.
    """

    def __init__(
        self,
        protocol: RunProtocol,
        directory: Directory,
        settings: RoundSettings,
        *,
        timeout: RoundTimeout | None = None,
        finished_rounds: int = 0,
        privacy: RoundPrivacy | None = None,
    ) -> None:
        """Make the strategy of a run.

        Args:
            protocol: of the run.
            directory: knows which node hosts which client.
            settings: what all rounds have in common.
            timeout: how long replies may take.
            finished_rounds: rounds before a resumed run; Flower's loop counts from 1 again.
            privacy: of the run; None where no noise is added.
        """
        self.protocol = protocol
        self.settings = settings
        self.versions = downlink_of(protocol).new_versions() if settings.memory else None
        self.finished_rounds = finished_rounds
        self._directory = directory
        self._timeout = timeout or RoundTimeout(None)
        self._privacy = privacy
        self._limit = FailureLimit()
        self._round: _Round | None = None
        self.last: FinishedRound | None = None

    def rounds(self, channel: Channel, state: GlobalState, last: int) -> Iterator[FinishedRound]:
        """Run all rounds up to number `last`, and yield each one when it is closed.

        Raises:
            RunError: the new global model is not finite, or most clients failed for the third time in a row in a run
                that is not private.
            BudgetSpent: a further round would exceed privacy.epsilon.
        """
        for number in range(self.finished_rounds + 1, last + 1):
            finished = self._run_round(channel, state, number)
            state = finished.state
            yield finished

    def _run_round(self, channel: Channel, state: GlobalState, number: int) -> FinishedRound:
        current = self._open(state, number)
        clients = list(current.opened.clients)
        if self.settings.oversample > 1:  # the first replies count, so chance must decide who is asked first
            clients = shuffle(clients, self.protocol.seed, number)
        failed: list[TooFewError] = []
        while True:
            enough = self._ask(channel, current, clients)
            late = [client for client in current.opened.clients if client not in current.payloads()] if enough else []
            try:
                return self._close(current, late, [few.report for few in failed])
            except TooFewError as few:
                failed.append(few)
                self._limit.count += 1
                if self._limit.count >= MAX_FAILING:
                    reason = f"{few}, as others before; see to them, then go on with resume=true"
                    raise RunError(reason, code="clients-fail") from None
                clients = self._replace_clients(current, few.report, len(failed))
                self._directory.report(f"{few}; the round continues with {len(clients)} other clients")

    def _open(self, state: GlobalState, number: int) -> _Round:
        """Draw the clients of a round."""
        samples = self._directory.available().samples
        count = self.settings.asked(self.settings.clients_per_round)
        opened = open_round(self.protocol, state, number, samples, count, versions=self.versions, privacy=self._privacy)
        return _Round(opened, OrderSender(opened, self.settings.config))

    def _requests(self, current: _Round, clients: Iterable[int]) -> list[OrderRequest]:
        hosts = self._directory.current
        return [OrderRequest(current.sender, client, hosts[client].node_id) for client in clients]

    def _ask(self, channel: Channel, current: _Round, clients: Sequence[int]) -> bool:
        """Ask clients; return whether the round has all the replies that it uses, so that others are late."""
        kept = sum(isinstance(payload, bytes) for payload in current.payloads().values())
        oversampled = self.settings.oversample > 1
        needed = max(0, self.settings.clients_per_round - kept) if oversampled else None
        answers = channel.ask(self._requests(current, clients), ReplyPolicy(needed, self._timeout.seconds))
        current.note(answers)
        self._timeout.note(max((answer.seconds for answer in answers), default=0.0))
        usable = sum(isinstance(payload, bytes) for payload in current.payloads().values())
        return oversampled and usable >= self.settings.clients_per_round

    def _replace_clients(self, current: _Round, report: RoundReport, repeat: int) -> list[int]:
        """Continue a round of too few replies with other clients, and return them."""
        opened, used = current.opened, report.used_clients
        if self.versions is not None:
            self.versions.forget(opened.clients.keys() - set(used))
        samples = self._directory.available().samples
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

    def _close(self, current: _Round, late: Sequence[int], earlier: Sequence[RoundReport] = ()) -> FinishedRound:
        """Average the usable replies.

        Raises:
            TooFewError: fewer than `min_replies` are usable.
            RunError: the new model is not finite, or most clients failed for the third time in a row in a run that is
                not private.
        """
        opened, payloads = current.opened, current.payloads()
        state, report = close_round(opened, payloads, min_replies=self.settings.min_replies, late=late)
        used = set(report.used_clients)
        failed_now = {reply.client for reply in report.failed}
        before = {one.client: one for closed in earlier for one in closed.failed}
        report.failed[:0] = [one for client, one in before.items() if client not in used | failed_now]
        uplink = [current.answers[client].uplink_bytes for client in report.used_clients]
        rejected = current.uplink - sum(uplink)
        self.last = FinishedRound(state, report, uplink, list(current.downlink.values()), rejected)
        if self._privacy is None:  # the end of a private run must not depend on what clients do
            self._limit.note(report)
        elif line := self._limit.reached(report):
            self._directory.report(f"{line}; a private run goes on, because its end would tell who failed; see to them")
        return self.last

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address the global model to this round's clients, each with a seed of its own.

        Raises:
            BudgetSpent: the round would exceed privacy.epsilon.
        """
        current = self._round = self._open(unpack_state(arrays), server_round + self.finished_rounds)
        for request in self._requests(current, current.opened.clients):
            content = request.content()
            current.downlink[request.client] = content_bytes(content)
            current.messages[request.client] = Message(content, request.node, "train", group_id=request.group)
        return list(current.messages.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode the replies and close the round.

        Raises:
            RunError: no reply is usable in a run that is not private, or the new global model is not finite.
        """
        assert self._round is not None, "Flower calls configure_train first"
        current, self._round = self._round, None
        by_message = by_request(replies)
        for request in self._requests(current, current.opened.clients):
            reply = by_message.get(current.messages[request.client].metadata.message_id)
            if reply is None:
                continue
            try:
                payload: bytes | PayloadError = read_payload_of(reply, request.node)
            except PayloadError as error:
                payload = error
            size = 0 if reply.has_error() else content_bytes(reply.content)
            current.note([Answer(request, payload, uplink_bytes=size)])
        return pack_state(self._close(current, []).state), None

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
