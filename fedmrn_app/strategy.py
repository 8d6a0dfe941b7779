"""Flower's strategy for every method: masked noise or any other update, decoded by the method and averaged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.federation.agreement import Agreement
from fedmrn_app.federation.privacy import Privacy
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.federation.server import OpenRound, close_round, open_round
from fedmrn_app.federation.versions import Versions
from fedmrn_app.messages import (
    by_request,
    content_bytes,
    order_content,
    pack_state,
    read_lost,
    read_payload,
    sent_as_is,
    unpack_state,
)
from fedmrn_app.present import Host, Present

FAILING_ROUNDS = 3  # in a row in which most clients fail, and the run ends


@dataclass(frozen=True)
class Traffic:
    """Bytes of the contents of a round's messages, Flower's framing included, by client.

    Attributes:
        downlink: sent to each client that was asked, in all messages to it.
        uplink: of each reply that was used.
    """

    downlink: dict[int, int] = field(default_factory=dict)
    uplink: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Sent:
    """What Flower's two calls of a round must both know: the round, how its messages are named, and what they weigh."""

    opened: OpenRound
    messages: dict[int, Metadata]  # not their contents, of which each may hold weights of its own
    traffic: Traffic
    grid: Grid
    deadline: float


class PayloadStrategy(Strategy):
    """Asks clients, checks what they send, and averages what is usable.

    The clients of a round are drawn by the run's seed, not by the node ids, which differ in every run; replies are
    summed in the order of client numbers, weighted by the sample counts that the nodes announced. A reply that is not
    exactly what was asked for is rejected with its reason. A client that says that it has lost the configuration, or
    the version of the model from which it was sent the difference, is asked again in the same round, once.

    Clients are drawn from those that are there when the round begins, so that the same seed draws the same ones of the
    same clients; one whose node dies in the round is not replaced.

    Attributes:
        report: what happened in the last round.
        traffic: what it weighed.
    """

    def __init__(
        self,
        agreement: Agreement,
        hosts: Callable[[], Mapping[int, Host]],
        *,
        clients_per_round: int,
        config: bytes,
        round_timeout: float = 3600.0,
        memory: bool = False,
        finished_rounds: int = 0,
        lost: Callable[[], Mapping[str, str]] = dict,
        privacy: Privacy | None = None,
        on_failure: Callable[[int, int, str], None] = lambda server_round, client, reason: None,
    ) -> None:
        self.agreement = agreement
        self.hosts: Mapping[int, Host] = {}  # of the round
        self._find_hosts = hosts
        self._lost = lost  # why there will be no reply to a message
        self._failing = 0  # rounds in a row in which most clients failed
        self.clients_per_round = clients_per_round
        self.config = config  # for nodes that have lost it
        self.round_timeout = round_timeout  # seconds
        self.versions = Versions(agreement.grid_rule(None).sizes) if memory else None
        self.finished_rounds = finished_rounds  # rounds done before a resumed run; Flower counts from 1 again
        self.privacy = privacy
        self.on_failure = on_failure
        self.report = RoundReport(finished_rounds)
        self.traffic = Traffic()
        self._sent: Sent | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address the global model to this round's clients, each with a seed of its own.

        Raises:
            BudgetSpent: the round would exceed privacy.epsilon.
        """
        self.hosts = self._find_hosts()
        hosts = self.hosts
        samples = hosts.samples if isinstance(hosts, Present) else {client: hosts[client].samples for client in hosts}
        number = server_round + self.finished_rounds
        state = unpack_state(arrays)
        count, versions = self.clients_per_round, self.versions
        opened = open_round(self.agreement, state, number, samples, count, versions, self.privacy)
        shared = sent_as_is(arrays) if self.agreement.method.packing == "float32" else None
        self._sent = Sent(opened, {}, Traffic(), grid, time.monotonic() + self.round_timeout)
        messages = []
        for client in opened.clients:
            everything = opened.held(client) is None
            content = order_content(opened.order(client), shared if everything else None, None)
            if everything:
                shared = content.array_records.get("model")  # written and weighed once for all
            messages.append(self._address(self._sent, client, content))
        return messages

    def _address(self, sent: Sent, client: int, content: RecordDict) -> Message:
        """A message to a client's node, named and weighed in `sent`."""
        group = str(sent.opened.number)
        node = self.hosts[client].node_id
        # later nobody wants the reply, and Flower is to forget it
        message = Message(content, node, "train", ttl=self.round_timeout + 60, group_id=group)
        sent.messages[client] = message.metadata
        sent.traffic.downlink[client] = sent.traffic.downlink.get(client, 0) + content_bytes(content)
        return message

    def _ask_again(self, sent: Sent, replies: dict[str, Message], lost: dict[str, str]) -> None:
        """Send clients what they say they have lost, and add their replies."""
        again = []
        for client, metadata in list(sent.messages.items()):
            reply = replies.get(metadata.message_id)
            what = None if reply is None else read_lost(reply)
            if what is not None:
                config = self.config if what == "configuration" else None
                content = order_content(sent.opened.order(client, whole=True), None, config)
                again.append(self._address(sent, client, content))
        left = sent.deadline - time.monotonic()
        if again and left > 0:
            replies.update(by_request(sent.grid.send_and_receive(again, timeout=left)))
            lost.update(self._lost())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Close the round; see `close_round`.

        Raises:
            RunError: no reply is usable, the new global model is not finite, or most clients have failed for the
                third round in a row.
        """
        assert self._sent is not None, "Flower calls configure_train first"
        sent, self._sent = self._sent, None
        by_message, lost = by_request(replies), dict(self._lost())
        self._ask_again(sent, by_message, lost)
        opened, traffic = sent.opened, sent.traffic
        payloads: dict[int, bytes | PayloadError] = {}
        for client, metadata in sent.messages.items():
            reply = by_message.get(metadata.message_id)
            if reply is None:
                if (reason := lost.get(metadata.message_id)) is not None:
                    payloads[client] = PayloadError(reason)
                continue
            try:
                if not reply.has_error() and reply.metadata.src_node_id != metadata.dst_node_id:
                    raise PayloadError(f"reply came from node {reply.metadata.src_node_id}, which does not host it")
                payloads[client] = read_payload(reply)
            except PayloadError as error:
                payloads[client] = error
                continue
            traffic.uplink[client] = content_bytes(reply.content)
        state, self.report = close_round(opened, payloads)
        number = opened.number
        del opened, sent, payloads, by_message  # their memory is needed now
        for client, reason in self.report.failures.items():
            traffic.uplink.pop(client, None)
            self.on_failure(number, client, reason)
        self.traffic = traffic
        self._note_failing(number)
        return pack_state(state), None

    def _note_failing(self, number: int) -> None:
        """Count the rounds in a row in which most clients failed, and end the run after some."""
        failures, used = self.report.failures, len(self.report.losses)
        self._failing = self._failing + 1 if len(failures) > used else 0
        if self._failing < FAILING_ROUNDS:
            return
        reasons = "; ".join(f"client {client}: {reason}" for client, reason in list(failures.items())[:5])
        raise RunError(
            f"round {number}: most clients failed in {FAILING_ROUNDS} rounds in a row, {len(failures)} of "
            f"{len(failures) + used} in this one ({reasons}); see to them, then go on with resume=true"
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: the global model is evaluated on the server."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing: the global model is evaluated on the server."""
        return None

    def summary(self) -> None:
        """Log nothing beyond the run's own lines."""
