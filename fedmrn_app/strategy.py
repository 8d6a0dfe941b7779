"""Flower's strategy for every method: masked noise or any other update, decoded by the method and averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.agreement import Agreement
from fedmrn_app.federation.server import OpenRound, RoundReport, close_round, open_round
from fedmrn_app.messages import content_bytes, order_content, pack_state, read_payload, sent_as_is, unpack_state


@dataclass(frozen=True)
class Host:
    """Where a client is, as its node announced it."""

    node_id: int
    samples: int


@dataclass(frozen=True)
class Traffic:
    """Bytes of the contents of a round's messages, Flower's framing included, by client.

    Attributes:
        downlink: sent to each client that was asked.
        uplink: of each reply that was used.
    """

    downlink: dict[int, int] = field(default_factory=dict)
    uplink: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Sent:
    """What Flower's two calls of a round must both know: the round, how its messages are named, and what they weigh."""

    opened: OpenRound
    messages: Mapping[int, Metadata]  # not their contents, of which each may hold weights of its own
    traffic: Traffic


class PayloadStrategy(Strategy):
    """Asks clients, checks what they send, and averages what is usable.

    The clients of a round are drawn by the run's seed, not by the node ids, which differ in every run; replies are
    summed in the order of client numbers, weighted by the sample counts that the nodes announced. A reply that is not
    exactly what was asked for is rejected with its reason.

    Attributes:
        report: what happened in the last round.
        traffic: what it weighed.
    """

    def __init__(
        self,
        agreement: Agreement,
        hosts: Mapping[int, Host],
        *,
        clients_per_round: int,
        config: bytes,
        finished_rounds: int = 0,
        on_failure: Callable[[int, int, str], None] = lambda server_round, client, reason: None,
    ) -> None:
        self.agreement = agreement
        self.hosts = hosts
        self.clients_per_round = clients_per_round
        self.config = config  # for nodes that have lost it
        self.finished_rounds = finished_rounds  # rounds done before a resumed run; Flower counts from 1 again
        self.on_failure = on_failure
        self.report = RoundReport(finished_rounds)
        self.traffic = Traffic()
        self._sent: Sent | None = None
        self._uninformed: set[int] = set()  # nodes that may have lost the configuration

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address the global model to this round's clients, each with a seed of its own."""
        samples = {client: host.samples for client, host in self.hosts.items()}
        number = server_round + self.finished_rounds
        opened = open_round(self.agreement, unpack_state(arrays), number, samples, self.clients_per_round)
        shared = sent_as_is(arrays) if self.agreement.method.packing == "float32" else None
        messages, traffic = {}, Traffic()
        for client in opened.clients:
            order = opened.order(client)
            everything = opened.held(client) is None
            node = self.hosts[client].node_id
            told = self.config if node in self._uninformed else None
            content = order_content(order, shared if everything else None, told)
            if everything:
                shared = content.array_records["model"]  # written and weighed once for all
            messages[client] = Message(content, dst_node_id=node, message_type="train", group_id=str(number))
            traffic.downlink[client] = content_bytes(content)
        self._sent = Sent(opened, {client: message.metadata for client, message in messages.items()}, traffic)
        return messages.values()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Close the round; see `close_round`.

        Raises:
            RunError: no reply is usable, or the new global model is not finite.
        """
        assert self._sent is not None, "Flower calls configure_train first"
        opened, messages, traffic = self._sent.opened, self._sent.messages, self._sent.traffic
        self._sent = None
        by_message = {reply.metadata.reply_to_message_id: reply for reply in replies}
        payloads: dict[int, bytes | PayloadError] = {}
        for client, sent in messages.items():
            reply = by_message.get(sent.message_id)
            self._uninformed.add(self.hosts[client].node_id)
            if reply is None:
                continue
            try:
                payloads[client] = read_payload(reply)
            except PayloadError as error:
                payloads[client] = error
                continue
            self._uninformed.discard(self.hosts[client].node_id)
            traffic.uplink[client] = content_bytes(reply.content)
        state, self.report = close_round(opened, payloads)
        number = opened.number
        del opened, messages, payloads, by_message  # their memory is needed now
        for client, reason in self.report.failures.items():
            traffic.uplink.pop(client, None)
            self.on_failure(number, client, reason)
        self.traffic = traffic
        return pack_state(state), None

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
