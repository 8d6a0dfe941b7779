"""Orders as Flower's messages: what the server sends a client that trains.

server -> client  {"": coded lattice, head}  or  {"model": arrays, "task": head}
                  and {"run": configuration} where a node has lost it
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedmrn_app.errors import PayloadError
from fedmrn_app.exchange.messages import FIELD, RECORD, Lost, from_array, to_array
from fedmrn_app.exchange.requests import Request
from fedmrn_app.federation.protocol import Order
from fedmrn_app.federation.server import OpenRound
from fedmrn_app.wire.payload import decode_payload

TASK = "t"  # field of an order on a lattice; the lattice is in FIELD
_HEAD = struct.Struct("<IIQIIf")  # client, round, seed, round and checksum of the base, scale of the noise or NaN
_BITS = struct.Struct("<f")  # bits per masked weight of the body, where the server sets them


def order_content(order: Order, shared: ArrayRecord | None, config: bytes | None) -> RecordDict:
    """Return the content of the message that asks a client to train.

    Args:
        order: the order.
        shared: the record of the same arrays in another message, which is reused; None to write a new one.
        config: the run's configuration, for a node that has lost it, see `pack_config`.
    """
    if isinstance(order.vector, bytes):  # a coded lattice is so short that names and frames would count
        scale = math.nan if order.scale is None else order.scale
        head = _HEAD.pack(order.client, order.server_round, order.seed, order.base, order.checksum, scale)
        head += b"" if order.bits is None else _BITS.pack(order.bits)
        content = RecordDict({RECORD: ConfigRecord({FIELD: order.vector, TASK: head})})
    else:
        task = ConfigRecord({"client": order.client, "round": order.server_round, "seed": order.seed})
        if order.scale is not None:
            task["scale"] = order.scale
        if order.bits is not None:
            task["bits"] = order.bits
        assert order.dense is not None
        arrays = shared or ArrayRecord({"vector": to_array(order.vector), "dense": to_array(order.dense)})
        content = RecordDict({"model": arrays, "task": task})
    if config is not None:
        content["run"] = ConfigRecord({"config": config})
    return content


def read_order(content: RecordDict) -> Order:
    """Return the order in a message's content.

    Raises:
        PayloadError: it is malformed.
    """
    try:
        short = content.config_records.get(RECORD)
        if short is not None:
            coded, head = short[FIELD], cast(bytes, short[TASK])
            client, server_round, seed, base, checksum, scale = _HEAD.unpack(head[: _HEAD.size])
            (bits,) = _BITS.unpack(head[_HEAD.size :]) if len(head) > _HEAD.size else (None,)
            if not isinstance(coded, bytes):
                raise TypeError(f"the lattice is {type(coded).__name__}")
            noise_scale = None if math.isnan(scale) else scale
            return Order(client, server_round, seed, coded, base=base, checksum=checksum, scale=noise_scale, bits=bits)
        task, arrays = content.config_records["task"], content.array_records["model"]
        client, server_round, seed = (_whole(task, name) for name in ("client", "round", "seed"))
        vector, dense = (from_array(arrays[name]) for name in ("vector", "dense"))
        scale, bits = (cast(float | None, task.get(name)) for name in ("scale", "bits"))
        return Order(client, server_round, seed, vector, dense, scale=scale, bits=bits)
    except Exception as error:  # NumPy raises many kinds of errors on a malformed header
        reason = str(error).splitlines()[0] if str(error) else ""
        raise PayloadError(f"the order is malformed: {type(error).__name__}: {reason}", code="order") from error


def _whole(record: ConfigRecord, name: str) -> int:
    """Return an unsigned 64-bit integer field."""
    value = record[name]
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"{name}={value!r}")
    return value


class OrderSender:
    """Writes the messages of one round; clients that are sent the same arrays share one record of them.

    Args:
        opened: the round.
        config: the run's configuration.
        packed: the global state of the round as `pack_state` has written it, whose arrays orders then share; None to
            write them anew.
    """

    def __init__(self, opened: OpenRound, config: bytes, packed: ArrayRecord | None = None) -> None:
        self.opened = opened
        self.config = config
        self._packed = packed
        self._shared: ArrayRecord | None = None

    def content(self, client: int, lost: Lost | None = None) -> RecordDict:
        """Return what a client is sent; `lost` names what it has said that it lost."""
        config = self.config if lost == "configuration" else None
        order = self.opened.order(client, whole=lost is not None)
        holds_all = self.opened.submodel_mask(client) is None
        content = order_content(order, self._shared_arrays(order) if holds_all else None, config)
        if holds_all:
            self._shared = content.array_records.get("model")
        return content

    def _shared_arrays(self, order: Order) -> ArrayRecord | None:
        """Return a record with the arrays of an order for a client that holds all weights, if there is one already."""
        state, packed = self.opened.state, self._packed
        if self._shared is None and packed and order.vector is state.vector and order.dense is state.dense:
            return ArrayRecord({name: packed[name] for name in ("vector", "dense")})
        return self._shared


@dataclass(frozen=True)
class OrderRequest(Request):
    """Asks a client to train for a round."""

    sender: OrderSender
    client: int
    node: int

    @property
    def group(self) -> str:  # type: ignore[override]
        """The number of the round."""
        return str(self.sender.opened.number)

    def content(self, lost: Lost | None = None) -> RecordDict:
        """Return the order, and all that the client has lost."""
        return self.sender.content(self.client, lost)

    def check(self, payload: bytes) -> None:
        """Check header and checksum."""
        opened = self.sender.opened
        decode_payload(payload, opened.header(self.client, opened.context(self.client)))
