"""The server's half of the plug-in: a Flower strategy around any other, which then gets the arrays that it expects."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedmrn_app.errors import ConfigError, PayloadError, RunError
from fedmrn_app.federation.upload import check_upload, header_of
from fedmrn_app.flower.messages import by_request, content_bytes, read_lost, remote_reason
from fedmrn_app.noise import Distribution
from fedmrn_app.plugin.arrays import Values, checked_ways, to_record, to_values, usual_ways
from fedmrn_app.plugin.client import only_arrays
from fedmrn_app.plugin.downlink import GridSender
from fedmrn_app.plugin.settings import RECORD, ClientTask, PluginSettings, Shared
from fedmrn_app.seeds import derive_seed
from fedmrn_app.wire.downlink import GRID_STEP


@dataclass(frozen=True)
class _Asked:
    """What one client was sent."""

    message: Message  # its metadata get their id when it is sent
    task: ClientTask
    values: Values
    bytes: int


class Compressed(Strategy):
    """A strategy around another one: clients upload a fraction of a bit to a few bits per weight instead of 32.

    The inner strategy chooses clients, aggregates and evaluates as it did; it gets ArrayRecords of the names, shapes
    and types that it sent. A reply that is not what was asked for is left out, with a line that names the node::

        strategy = Compressed(FedAvg(fraction_train=0.5), method="fedmrn", bits=0.5)
        strategy.start(grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=10)

    with `ClientApp(mods=[compress_uplink])` on the clients, and for `fedmrn` and `fedmrns` an optimiser that learns
    the masks there, `MaskedSGD` or `learn_masks`. Floating-point tensors of two and more dimensions are coded, the
    others go densely, in `dense_bits` per value. To the metrics of each reply are added `uplink_bytes`,
    `downlink_bytes` and `uplink_bits_per_parameter`, of whole messages.

    Args:
        strategy: any of Flower's, or your own; wrappers such as those for differential privacy too. This one is the
            outermost.
        method: `fedmrn`, `fedmrns`, `eden`, `drive`, `signsgd`, `topk`, `terngrad` or `fedavg`.
        bits: of a whole reply per parameter, that the noise's scale is steered to; only for `fedmrn` and `fedmrns`.
        noise: distribution of the seeded noise, `uniform`, `gaussian` or `bernoulli`.
        alpha: scale of the noise, about the size of one round's updates; that of the first round with `bits`.
        dense_bits: 4 to 8, 16 (float16) or 32 (float32).
        seed: of all noise.
        downlink: `grid` sends the arrays on a grid around the first ones, coded from what a client holds; a client
            that is new gets the first ones in float32 beside it.
        step: of the grid, in root mean squares of the first values, in a tensor of mean size.
        options: of the method, such as `{"bits": 2}` for `eden`.

    Raises:
        ConfigError: the method, or an option, is not one that works on an app's arrays.
    """

    def __init__(
        self,
        strategy: Strategy,
        method: str = "fedmrn",
        *,
        bits: float | None = None,
        noise: Distribution = "uniform",
        alpha: float = 1e-2,
        dense_bits: int = 6,
        seed: int = 0,
        downlink: Literal["float32", "grid"] = "float32",
        step: float = GRID_STEP,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(strategy, Compressed):
            raise ConfigError("Compressed(Compressed(...)): one is enough")
        self.strategy = strategy
        self.terms = PluginSettings(method, dict(options or {}), noise, alpha, bits, dense_bits, seed)
        self.method = self.terms.build()
        self._asked: list[_Asked] = []
        self._steering = None if self.method.steering is None else self.method.steering.first()
        self._timeout: float | None = None
        self._evaluating: list[int] = []
        if downlink not in ("float32", "grid"):
            raise ConfigError(f"downlink={downlink}: must be float32 or grid")
        self._sender = GridSender(step) if downlink == "grid" else None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        *args: Any,
        **keywords: Any,
    ) -> Result:
        """Run all rounds, as the inner strategy would; see `Strategy.start`."""
        self._timeout = timeout
        return super().start(grid, initial_arrays, num_rounds, timeout, *args, **keywords)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """What the inner strategy sends, with a seed for each client.

        Raises:
            RunError: another strategy is around this one, which would aggregate what it cannot read.
        """
        if self._timeout is None:
            raise RunError(
                "Compressed must be the outermost strategy: Compressed(Wrapper(FedAvg(...))), not "
                "Wrapper(Compressed(FedAvg(...)))"
            )
        messages = sorted(self.strategy.configure_train(server_round, arrays, config, grid), key=_node)
        self._asked, self._grid = [], grid
        self._deadline = time.monotonic() + self._timeout
        scale = None if self._steering is None else float(self._steering[0])
        read: dict[int, Values] = {}
        weighed: dict[int, int] = {}
        for number, message in enumerate(messages):
            key = only_arrays(message.content)
            record = cast(ArrayRecord, message.content[key])
            if self._sender is not None:
                if number == 0:
                    self._sender.open(record)
                message.content = self._sender.content(message.content, key, _node(message))
            task = ClientTask(self.terms, derive_seed(self.terms.seed, "noise", server_round, number), scale)
            message.content = RecordDict({**message.content, RECORD: task.record()})
            if id(record) not in read:  # most strategies send the same to all
                read[id(record)] = to_values(record) if self._sender is None else self._sender.received
            size = sum(_weigh(part, weighed) for part in message.content.values())
            self._asked.append(_Asked(message, task, read[id(record)], size))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode the replies in the order of the nodes, and let the inner strategy aggregate them."""
        by_message = by_request(replies)
        self._ask_again(by_message)
        decoded, spent = [], []
        worked_out: dict[tuple[int, bytes], Shared] = {}  # alike for replies sent the same way
        for asked in self._asked:
            node = _node(asked.message)
            try:
                reply = by_message.get(asked.message.metadata.message_id)
                if reply is None:
                    raise PayloadError("no reply in time")
                spent.append(self._decode(reply, asked, worked_out))
                decoded.append(reply)
            except PayloadError as error:
                logging.getLogger("flwr").warning("round %s: node %s left out: %s", server_round, node, error)
        if self._sender is not None:
            self._sender.note(map(_node, (asked.message for asked in self._asked)), map(_source, decoded))
        self._asked = []
        self._steer(spent)
        return self.strategy.aggregate_train(server_round, decoded)

    def _ask_again(self, replies: dict[str, Message]) -> None:
        """Send everything to those who have lost what their message refers to, and put in their replies."""
        if self._sender is None:
            return
        again = []
        for number, asked in enumerate(self._asked):
            reply = replies.get(asked.message.metadata.message_id)
            if reply is None or read_lost(reply) is None:
                continue
            node = _node(asked.message)
            self._sender.forget(node)
            content = self._sender.whole(asked.message.content)
            message = Message(content, node, "train", group_id=asked.message.metadata.group_id)
            self._asked[number] = replace(asked, message=message, bytes=asked.bytes + content_bytes(content))
            again.append(message)
        left = self._deadline - time.monotonic()
        if again and left > 0:
            replies.update(by_request(self._grid.send_and_receive(again, timeout=left)))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the inner strategy does; on a grid, where the way down has one."""
        messages = list(self.strategy.configure_evaluate(server_round, arrays, config, grid))
        for number, message in enumerate(messages):
            if self._sender is not None:
                key = only_arrays(message.content)
                if number == 0:
                    self._sender.open(cast(ArrayRecord, message.content[key]))
                message.content = self._sender.content(message.content, key, _node(message))
        self._evaluating = [_node(message) for message in messages]
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the inner strategy does, without those who could not read the arrays."""
        usable = []
        for reply in replies:
            if read_lost(reply) is not None:
                logging.getLogger("flwr").warning("round %s: node %s has lost the arrays", server_round, _source(reply))
                if self._sender is not None:
                    self._sender.forget(_source(reply))
                continue
            usable.append(reply)
        if self._sender is not None and self._evaluating:
            self._sender.note(self._evaluating, [_source(reply) for reply in usable if reply.has_content()])
        return self.strategy.aggregate_evaluate(server_round, usable)

    def summary(self) -> None:
        """As the inner strategy does, after a line of this one."""
        logging.getLogger("flwr").info("\t├──> Uplink: %s", self.terms)
        self.strategy.summary()

    def _decode(self, reply: Message, asked: _Asked, worked_out: dict[tuple[int, bytes], Shared]) -> _Spent:
        """Put the arrays that a reply stands for in the place of its payload, and its bytes among its metrics.

        Raises:
            PayloadError: the reply is not what was asked for.
        """
        if reply.has_error():
            raise PayloadError(f"failed with: {remote_reason(str(reply.error.reason))}")
        content, size = reply.content, content_bytes(reply.content)
        if content.array_records:
            raise PayloadError("answered with plain arrays; its ClientApp needs mods=[compress_uplink]")
        keys = [key for key, record in content.config_records.items() if isinstance(record.get(""), bytes)]
        if len(keys) != 1 or len(content.metric_records) != 1:
            raise PayloadError("reply does not hold exactly one payload and one MetricRecord")
        record = cast(Mapping[str, Any], content[keys[0]])
        data, exact, named = (record.get(field, b"") for field in ("", "exact", "ways"))
        if not all(isinstance(part, bytes) for part in (data, exact, named)):
            raise PayloadError("reply holds something else than bytes")
        ways = checked_ways(named, asked.values) if named else usual_ways(asked.values)
        kind = (id(asked.values), ways.tobytes())
        if kind not in worked_out:
            worked_out[kind] = Shared.of(self.method, asked.task, asked.values, ways)
        shared = worked_out[kind]
        header = header_of(shared.protocol, asked.task.seed, 1, shared.known.count)
        upload = check_upload(data, shared.protocol, header, shared.known, shared.dense)
        vector = shared.known.vector.copy()
        upload.contribution.add_to(vector, np.float32(1))
        values = shared.parts.replaced(asked.values, vector, upload.dense, exact)
        del content[keys[0]]
        content[keys[0]] = to_record(values)
        parameters = sum(value.size for value in asked.values.values() if np.issubdtype(value.dtype, np.floating))
        metrics = next(iter(content.metric_records.values()))
        metrics["uplink_bytes"], metrics["downlink_bytes"] = size, asked.bytes
        metrics["uplink_bits_per_parameter"] = 8 * size / max(1, parameters)
        return _Spent(size, len(upload.payload.body), parameters, max(1, shared.known.count))

    def _steer(self, spent: Sequence[_Spent]) -> None:
        """Set the scale of the next round's noise by what the replies of this one took."""
        steering, state = self.method.steering, self._steering
        if steering is None or state is None or not spent:
            return
        body = np.mean([8 * one.body / one.coded for one in spent])
        left = np.mean([(steering.bits * one.parameters - 8 * (one.whole - one.body)) / one.coded for one in spent])
        self._steering = steering.next(state, float(body), float(left))


@dataclass(frozen=True)
class _Spent:
    """What one reply took: bytes in all and of its body; its parameters, and how many of them it codes."""

    whole: int
    body: int
    parameters: int
    coded: int


def _weigh(part: ArrayRecord | ConfigRecord | MetricRecord, weighed: dict[int, int]) -> int:
    """Bytes of a part of a message; arrays, of which many messages hold the same, are weighed once."""
    if not isinstance(part, ArrayRecord):
        return content_bytes(part)
    if id(part) not in weighed:
        weighed[id(part)] = content_bytes(part)
    return weighed[id(part)]


def _node(message: Message) -> int:
    return message.metadata.dst_node_id


def _source(reply: Message) -> int:
    return reply.metadata.src_node_id
