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
from fedmrn_app.federation.pipeline import mask_bits
from fedmrn_app.flower.messages import by_request, content_bytes, read_lost, remote_reason
from fedmrn_app.noise import Distribution
from fedmrn_app.plugin.arrays import Values, checked_ways, only_arrays, to_record, to_values, usual_ways
from fedmrn_app.plugin.downlink import LatticeSender
from fedmrn_app.plugin.settings import (
    RECORD,
    WITHOUT_MASKS,
    ClientTask,
    PluginSettings,
    RoundContext,
    learns_masks,
)
from fedmrn_app.seeds import derive_seed
from fedmrn_app.wire.downlink import GRID_STEP

_Contexts = dict[tuple[int, bytes, bool], RoundContext]  # by the arrays that were sent and the ways they are sent back
_log = logging.getLogger("flwr")


@dataclass(frozen=True, kw_only=True)
class _Request:
    """What one client was asked.

    Attributes:
        message: the message; Flower sets its id when it sends it.
        content: its content with the arrays as the inner strategy sent them.
        task: what the client is asked.
        values: the arrays as the client reads them.
        downlink_bytes: of all records that the client was sent.
    """

    message: Message
    content: RecordDict
    task: ClientTask
    values: Values
    downlink_bytes: int


class Compressed(Strategy):
    """A strategy around another one: clients upload a fraction of a bit to a few bits per weight instead of 32.

    The inner strategy chooses clients, aggregates and evaluates as before; it gets ArrayRecords with the names, shapes
    and dtypes that it sent. A reply that is not what was asked for is left out, with a log line that names the node::

        strategy = Compressed(FedAvg(fraction_train=0.5), method="fedmrn", bits=0.5)
        strategy.start(grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=10)

    The clients need `ClientApp(mods=[compress_uplink])`, and for `fedmrn` and `fedmrns` an optimizer that learns masks,
    `MaskedSGD` or `learn_masks`. Floating-point tensors with two or more dimensions are coded, the others are sent
    densely. The metrics of each reply gain `uplink_bytes` and `downlink_bytes`, of all records of the reply and of the
    message, and `uplink_bits_per_parameter`.

    Args:
        strategy: any strategy of Flower's or your own, with its wrappers, such as those for differential privacy.
        method: `fedmrn` or `fedmrns`, which learn masks, or a method that compresses after training, such as `eden`.
        bits: bits per parameter that a whole reply is to take; the scale of the noise is set accordingly. Only methods
            that learn masks allow it.
        noise: distribution of the seeded noise: `uniform`, `gaussian` or `bernoulli`.
        alpha: scale of the noise, about the size of one round's updates; with `bits` that of the first round.
        dense_bits: bits per value of the dense part: 4 to 8, 16 (float16) or 32 (float32).
        seed: seed of all noise.
        downlink: `float32` sends the arrays as they are. `grid` rounds them to a grid around the first arrays and sends
            what has changed since the version that a client holds; a new client is sent the first arrays too.
        step: step of that grid for a tensor of mean size, in root mean squares of the first values.
        options: options of the method, such as `{"bits": 2}` for `eden`.

    Raises:
        ConfigError: the method or an option does not work on an app's arrays.
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
            raise ConfigError("Compressed(Compressed(...)): one is enough", code="nested", key="strategy")
        if downlink not in ("float32", "grid"):
            reason = f"downlink={downlink}: must be float32 or grid"
            raise ConfigError(reason, code="choice", key="downlink", value=downlink)
        self.strategy = strategy
        self.settings = PluginSettings(
            method=method, options=dict(options or {}), distribution=noise, alpha=alpha, bits=bits,
            dense_bits=dense_bits, seed=seed,
        )  # fmt: skip
        self.method = self.settings.build()
        self._control = self.method.rate_control
        self._rate_state = None if self._control is None else self._control.first()
        self._lattice = LatticeSender(step) if downlink == "grid" else None
        self._timeout: float | None = None
        self._requests: list[_Request] = []

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        *args: Any,
        **more: Any,
    ) -> Result:
        """Run all rounds as the inner strategy would, see `Strategy.start`."""
        self._timeout = timeout
        return super().start(grid, initial_arrays, num_rounds, timeout, *args, **more)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the inner strategy's messages with a task for each client.

        Raises:
            RunError: another strategy is around this one, and would aggregate payloads.
        """
        if self._timeout is None:
            raise RunError(
                "Compressed must be the outermost strategy: Compressed(Wrapper(FedAvg(...))), not "
                "Wrapper(Compressed(FedAvg(...)))",
                code="not-outermost",
            )
        messages = sorted(self.strategy.configure_train(server_round, arrays, config, grid), key=_node)
        contents = [message.content for message in messages]
        self._put_on_lattice(messages)
        self._grid, self._deadline = grid, time.monotonic() + self._timeout
        self._requests, lattice = [], self._lattice
        scale = None if self._rate_state is None else float(self._rate_state[0])
        read: dict[int, tuple[Values, int]] = {}  # values and bytes of each ArrayRecord; most clients are sent the same
        for number, (message, content) in enumerate(zip(messages, contents, strict=True)):
            task = ClientTask(self.settings, derive_seed(self.settings.seed, "noise", server_round, number), scale)
            message.content = RecordDict({**message.content, RECORD: task.record()})
            record = only_arrays(content)[1]
            if id(record) not in read:
                read[id(record)] = (lattice.received, 0) if lattice else (to_values(record), content_bytes(record))
            values, size = read[id(record)]
            size += sum(content_bytes(part) for part in message.content.values() if lattice or part is not record)
            self._requests.append(
                _Request(message=message, content=content, task=task, values=values, downlink_bytes=size)
            )
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode the replies in the order of the nodes, and let the inner strategy aggregate them."""
        received = by_request(replies)
        self._ask_again(received)
        decoded, spent = [], []
        contexts: _Contexts = {}
        for request in self._requests:
            try:
                reply = received.get(request.message.metadata.message_id)
                if reply is None:
                    raise PayloadError("no reply in time", code="timeout")
                bits = self._decode(reply, request, contexts)
                spent += [] if bits is None else [bits]
                decoded.append(reply)
            except PayloadError as error:
                _log.warning("round %s: node %s left out: %s", server_round, _node(request.message), error)
        if self._lattice is not None and self._requests:
            self._lattice.note(map(_source, decoded))
        self._requests = []
        if self._control is not None and self._rate_state is not None and spent:
            body, left = (float(np.mean(bits)) for bits in zip(*spent, strict=True))
            self._rate_state = self._control.next(self._rate_state, body, left)
        return self.strategy.aggregate_train(server_round, decoded)

    def _ask_again(self, replies: dict[str, Message]) -> None:
        """Send the whole arrays to clients that have lost what their messages refer to, and add their replies."""
        if self._lattice is None:
            return
        again = []
        for number, request in enumerate(self._requests):
            reply = replies.get(request.message.metadata.message_id)
            if reply is None or read_lost(reply) is None:
                continue
            node, metadata = _node(request.message), request.message.metadata
            self._lattice.forget(node)
            content = self._lattice.content(request.content, node)
            content[RECORD] = request.task.record()
            again.append(Message(content, node, "train", group_id=metadata.group_id))
            size = request.downlink_bytes + content_bytes(content)
            self._requests[number] = replace(request, message=again[-1], downlink_bytes=size)
        left = self._deadline - time.monotonic()
        if again and left > 0:
            replies.update(by_request(self._grid.send_and_receive(again, timeout=left)))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the inner strategy's messages, on the lattice where the downlink has one."""
        messages = list(self.strategy.configure_evaluate(server_round, arrays, config, grid))
        self._put_on_lattice(messages)
        self._evaluates = bool(messages)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Let the inner strategy aggregate the replies of clients that could read the arrays."""
        usable = []
        for reply in replies:
            if read_lost(reply) is None:
                usable.append(reply)
                continue
            _log.warning("round %s: node %s has lost the arrays", server_round, _source(reply))
            if self._lattice is not None:
                self._lattice.forget(_source(reply))
        if self._lattice is not None and self._evaluates:
            self._lattice.note(_source(reply) for reply in usable if reply.has_content())
        return self.strategy.aggregate_evaluate(server_round, usable)

    def summary(self) -> None:
        """Log the settings of the uplink and the inner strategy's summary."""
        _log.info("\t├──> Uplink: %s", self.settings)
        self.strategy.summary()

    def _put_on_lattice(self, messages: Sequence[Message]) -> None:
        """Code the arrays of messages from what their nodes hold, where the downlink has a lattice."""
        if self._lattice is None or not messages:
            return
        self._lattice.open(only_arrays(messages[0].content)[1], map(_node, messages))
        for message in messages:
            message.content = self._lattice.content(message.content, _node(message))

    def _decode(self, reply: Message, request: _Request, contexts: _Contexts) -> tuple[float, float] | None:
        """Replace a reply's payload by the arrays that it stands for, and add its bytes to its metrics.

        Returns:
            Bits per coded weight: those of the payload's body, and those that `bits` leaves to it; None without masks.

        Raises:
            PayloadError: the reply is not what was asked for.
        """
        size = 0 if reply.has_error() else content_bytes(reply.content)
        key, data, exact, named = _read_reply(reply)
        ways = checked_ways(named, request.values) if named else usual_ways(request.values)
        task, masked = request.task, WITHOUT_MASKS not in reply.content.config_records[key]
        if not masked and not learns_masks(self.method):
            raise PayloadError(f"reply was coded without masks, which {self.method.name} has none of", code="method")
        kind = (id(request.values), ways.tobytes(), masked)
        if kind not in contexts:
            task = task if masked else task.without_masks()
            contexts[kind] = RoundContext.of(task.settings.build(), task, request.values, ways)
        shared = contexts[kind]
        values, upload = shared.decode(request.values, task.seed, data, exact)
        del reply.content[key]
        reply.content[key] = to_record(values)
        parameters = sum(value.size for value in request.values.values() if np.issubdtype(value.dtype, np.floating))
        metrics = next(iter(reply.content.metric_records.values()))
        metrics["uplink_bytes"], metrics["downlink_bytes"] = size, request.downlink_bytes
        metrics["uplink_bits_per_parameter"] = 8 * size / max(1, parameters)
        if not masked:
            return None
        budget = parameters * (self.settings.bits or 0.0)
        return mask_bits(budget, max(1, shared.context.count), payload=size, body=len(upload.payload.body))


def _read_reply(reply: Message) -> tuple[str, bytes, bytes, bytes]:
    """Return the payload's key in a reply, the payload, the tensors that are sent exactly, and the ways of sending.

    Raises:
        PayloadError: the client failed, or its reply does not hold these and metrics.
    """
    if reply.has_error():
        raise PayloadError(f"failed with: {remote_reason(str(reply.error.reason))}", code="client")
    content = reply.content
    if content.array_records:
        raise PayloadError("answered with plain arrays; its ClientApp needs mods=[compress_uplink]", code="no-mod")
    keys = [key for key, record in content.config_records.items() if isinstance(record.get(""), bytes)]
    if len(keys) != 1 or len(content.metric_records) != 1:
        raise PayloadError("reply does not hold exactly one payload and one MetricRecord", code="records")
    record = cast(Mapping[str, Any], content[keys[0]])
    data, exact, named = (record.get(field, b"") for field in ("", "exact", "ways"))
    if not all(isinstance(part, bytes) for part in (data, exact, named)):
        raise PayloadError("reply holds something else than bytes", code="records")
    return keys[0], data, exact, named


def _node(message: Message) -> int:
    return message.metadata.dst_node_id


def _source(reply: Message) -> int:
    return reply.metadata.src_node_id
