"""One round on the server: choose clients, send, check replies, decode and aggregate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.metadata import Metadata
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore.inflatable.inflatable_object import InflatableObject
from numpy.typing import NDArray

from fedmrn_app.arrays import from_array, to_array
from fedmrn_app.errors import PayloadError, RunError, remote_reason
from fedmrn_app.methods import Common, Method
from fedmrn_app.noise import Float32Array, derive_seed
from fedmrn_app.shapes import Shapes
from fedmrn_app.uplink import FIELD, RECORD, DenseFormat, add_upload
from fedmrn_app.wire.payload import Payload


@dataclass(frozen=True)
class Member:
    """A client as its node announced it when the run started."""

    node_id: int
    samples: int


@dataclass
class RoundReport:
    """What happened in one round.

    Attributes:
        selected: the round's clients, in ascending order.
        failures: the reason of each client that was left out.
        downlink_bytes: length of the content sent to each client, Flower's framing included.
        uplink_bytes: length of each usable reply's content, likewise.
        losses: mean training loss of each usable reply; the seconds likewise.
        decode_seconds: server time to check, decode and add all replies.
    """

    selected: list[int]
    downlink_bytes: list[int] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    uplink_bytes: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    train_seconds: list[float] = field(default_factory=list)
    compress_seconds: list[float] = field(default_factory=list)
    decode_seconds: float = 0.0

    def add(self, payload: Payload, uplink_bytes: int) -> None:
        """Note a usable reply."""
        self.uplink_bytes.append(uplink_bytes)
        self.losses.append(payload.loss)
        self.train_seconds.append(payload.train_seconds)
        self.compress_seconds.append(payload.compress_seconds)


class PayloadStrategy(Strategy):
    """Flower strategy for every method: masked noise or any other update, decoded by the method and averaged.

    The clients of a round are drawn by the run's seed, not by the node ids, which differ in every run; replies are
    summed in the order of client numbers, weighted by the sample counts that the nodes announced. A reply that is not
    exactly what was asked for is left out with its reason.
    """

    def __init__(
        self,
        method: Method,
        shapes: Shapes,
        dense_sizes: Sequence[int],
        first_vector: Float32Array,
        members: Mapping[int, Member],
        *,
        clients_per_round: int,
        seed: int,
        dense_bits: int = 32,
        finished_rounds: int = 0,
        on_failure: Callable[[int, int, str], None] = lambda server_round, client, reason: None,
    ) -> None:
        self.method = method
        self.shapes = shapes
        self.dense_sizes = dense_sizes
        self.first_vector = first_vector  # before the first round of the run, resumed or not
        self.dense_bits = dense_bits
        self.members = members
        self.clients_per_round = clients_per_round
        self.seed = seed
        self.finished_rounds = finished_rounds  # rounds done before a resumed run; Flower counts from 1 again
        self.on_failure = on_failure
        self.report = RoundReport([])
        self._sent: dict[int, Metadata] = {}
        self._vector: Float32Array = np.empty(0, np.float32)
        self._dense: Float32Array = np.empty(0, np.float32)
        self._common = Common(shapes, first_vector, first_vector)  # of the client that was last asked

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address the global model to this round's clients, each with a seed of its own."""
        server_round += self.finished_rounds
        self._vector, self._dense = from_array(arrays["vector"]), from_array(arrays["dense"])
        selected = sample_clients(sorted(self.members), self.clients_per_round, self.seed, server_round)
        messages = {}
        sent: ArrayRecord | None = None
        downlink_bytes = []
        for client in selected:
            if sent is None or self._common.held is not None:  # else all clients get the same
                self._common, packed = self._pack_for(client, server_round)
                if packed is self._vector:
                    sent = arrays
                else:
                    sent = ArrayRecord({"vector": to_array(packed), "dense": arrays["dense"]})
                sent_bytes = content_bytes(sent)
            messages[client] = Message(
                RecordDict({"model": sent, "task": self._task(client, server_round)}),
                dst_node_id=self.members[client].node_id,
                message_type="train",
                group_id=str(server_round),
            )
            content = messages[client].content
            downlink_bytes.append(len(content.deflate()) + sent_bytes + content_bytes(content["task"]))
        self.report = RoundReport(selected, downlink_bytes)
        self._sent = {client: message.metadata for client, message in messages.items()}
        return messages.values()

    def _pack_for(self, client: int, server_round: int) -> tuple[Common, NDArray[Any]]:
        """What a client holds of the global vector, as both sides know it and as it is sent."""
        held = self.method.held(self.shapes, client, server_round, self._seed(client, server_round))
        packed = self.method.send(self._vector, self.shapes, held)
        return self.method.receive(packed, self.shapes, self.first_vector, held), packed

    def _task(self, client: int, server_round: int) -> ConfigRecord:
        seed = self._seed(client, server_round)
        return ConfigRecord({"client": client, "round": server_round, "seed": seed})

    def _seed(self, client: int, server_round: int) -> int:
        return self.method.client_seed(self.seed, server_round, client)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the global vector with the weighted mean of all usable updates; average the dense parts.

        Raises:
            RunError: no reply is usable, or the new global model is not finite.
        """
        server_round += self.finished_rounds
        by_message = {message.metadata.reply_to_message_id: message for message in replies}
        start = time.perf_counter()
        vector_sum = np.zeros_like(self._vector)
        dense_sum = np.zeros_like(self._dense)
        samples = 0
        # samples of the clients that hold a weight
        holders = np.zeros_like(self._vector) if self.method.averages_holders else None
        for client in self.report.selected:
            if self._common.held is not None:
                self._common, _ = self._pack_for(client, server_round)
            try:
                content = _content(by_message.get(self._sent[client].message_id))
                payload = self._add(content, client, server_round, vector_sum, dense_sum)
            except PayloadError as error:
                self.report.failures[client] = str(error)
                self.on_failure(server_round, client, str(error))
                continue
            samples += payload.samples
            if holders is not None:
                holders[self._common.held_weights()] += np.float32(payload.samples)
            self.report.add(payload, content_bytes(content))
        if samples == 0:
            reasons = "; ".join(f"client {client}: {reason}" for client, reason in self.report.failures.items())
            raise RunError(f"round {server_round}: no usable reply ({reasons})")
        replies_used = len(self.report.uplink_bytes)
        vector_sum /= np.float32(samples) if holders is None else np.maximum(holders, 1)
        vector = self.method.combine(self._vector, vector_sum, replies_used)
        dense = dense_sum / np.float32(samples)
        self.report.decode_seconds = time.perf_counter() - start
        if not (np.isfinite(vector).all() and np.isfinite(dense).all()):
            raise RunError(f"round {server_round}: the global model is no longer finite; take a smaller local.lr")
        self._common = Common(self.shapes, self.first_vector, self.first_vector)
        self._vector = np.empty(0, np.float32)  # its memory is needed now
        return pack_model(vector, dense), None

    def _add(
        self, content: RecordDict, client: int, server_round: int, vector_sum: Float32Array, dense_sum: Float32Array
    ) -> Payload:
        """Find, check and read the payload in a reply's content, and add it to the sums."""
        record = content.config_records.get(RECORD)
        data = record.get(FIELD) if record is not None else None
        if len(content) != 1 or record is None or len(record) != 1 or not isinstance(data, bytes):
            raise PayloadError("reply does not hold exactly one payload")
        return add_upload(
            data,
            self.method,
            self._common,
            DenseFormat(self._dense, self.dense_sizes, self.dense_bits),
            seed=self._seed(client, server_round),
            samples=self.members[client].samples,
            vector_sum=vector_sum,
            dense_sum=dense_sum,
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


def sample_clients(clients: list[int], count: int, seed: int, server_round: int) -> list[int]:
    """Draw `count` different clients of a round, in ascending order; the same for the same seed and round."""
    generator = np.random.Generator(np.random.Philox(key=derive_seed(seed, "sampling", server_round)))
    return sorted(int(client) for client in generator.choice(clients, count, replace=False))


def pack_model(vector: Float32Array, dense: Float32Array) -> ArrayRecord:
    """The global state as Flower's strategies pass it on: the method's `vector` (d,) and `dense` (m,)."""
    return ArrayRecord({"vector": to_array(vector), "dense": to_array(dense)})


def content_bytes(content: InflatableObject) -> int:
    """Bytes of a message's content, or of a part of it, as Flower puts it on the wire: everything with its framing."""
    return len(content.deflate()) + sum(content_bytes(child) for child in (content.children or {}).values())


def _content(reply: Message | None) -> RecordDict:
    if reply is None:
        raise PayloadError("no reply within round_timeout")
    if reply.has_error():
        raise PayloadError(f"failed with: {remote_reason(str(reply.error.reason))}")
    return reply.content
