"""Damage real orders of every type of downlink, and read them as a client does; a part of `fuzz_wire.py`."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.federation.downlinks import downlink_of
from fedmrn_app.federation.protocol import Order
from fedmrn_app.federation.server import close_round, open_round
from fedmrn_app.federation.versions import Version
from fedmrn_app.federation.worker import Worker
from fedmrn_app.kernels.level_tables import INPUTS, KINDS, SLOTS
from fedmrn_app.wire import entropy

# name and overrides of each
DOWNLINKS = {
    **{dtype: (f"downlink.dtype={dtype}",) for dtype in ("float32", "float16", "bfloat16", "int8")},
    "palette": ("strategy=fedpm",),
    "grid": ("downlink.dtype=grid", "downlink.memory=false"),
    "grid from a version": ("downlink.dtype=grid", "downlink.memory=true"),
    "quantized": ("downlink.dtype=quantized", "downlink.memory=false"),
    "quantized from a version": ("downlink.dtype=quantized", "downlink.memory=true"),
}
TABLES = 4 * KINDS * INPUTS * SLOTS  # bytes of the adaptive coder
SYMBOLS = ("palette", "grid", "grid from a version")  # those that are coded symbol by symbol


@dataclass(frozen=True)
class OrderSample:
    """A real order of the third round, and what its client holds."""

    name: str
    order: Order
    worker: Worker
    kept: Version | None
    table_bytes: int  # of the coder, beside the model

    @property
    def weights(self) -> int:
        return self.worker.model()[1].layout.count

    @property
    def model_bytes(self) -> int:
        return 4 * (self.weights + sum(self.worker.model()[1].dense_sizes))

    def read(self, order: Order) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Read an order as the client does."""
        download = downlink_of(self.worker.model()[1]).read(order, None, self.kept)
        return download.context.vector, download.dense

    def same(self, order: Order) -> bool:
        """Return whether an order is the undamaged one."""
        mine, other = self.order, order
        return (mine.base, mine.checksum) == (other.base, other.checksum) and all(
            (a is None) == (b is None) and np.array_equal(a, b)  # type: ignore[arg-type]
            for a, b in ((mine.vector, other.vector), (mine.dense, other.dense))
        )


def make_orders() -> list[OrderSample]:
    """Train one client for two rounds, so that weights have moved."""
    orders = [_make_order(name, overrides) for name, overrides in DOWNLINKS.items()]
    with in_lanes():
        return orders + [_make_order(f"{name}, lanes", DOWNLINKS[name]) for name in SYMBOLS]


@contextmanager
def in_lanes() -> Iterator[None]:
    """Write the form in several lanes, which is for long bodies, for short ones too."""
    usual = entropy.LONG
    entropy.LONG = 0
    try:
        yield
    finally:
        entropy.LONG = usual


def _make_order(name: str, overrides: tuple[str, ...]) -> OrderSample:
    worker = build_worker(load_config((*overrides, "local.epochs=1")))
    _, protocol = worker.model()
    state, kept = protocol.begin(), None
    versions = downlink_of(protocol).new_versions() if worker.settings.keeps_versions else None
    for number in (1, 2):
        opened = open_round(protocol, state, number, {0: worker.sample_count(0)}, 1, versions=versions)
        reply = worker.train(opened.order(0), kept)
        state, _ = close_round(opened, {0: reply.payload})
        kept = reply.state
    order = open_round(protocol, state, 3, {0: worker.sample_count(0)}, 1, versions=versions).order(0)
    assert (order.base == 2) == (versions is not None)
    tables = TABLES if name.startswith("quantized") else 0
    return OrderSample(name, order, worker, kept.version if kept is not None else None, tables)


OrderMutation = Callable[[Order, Order, np.random.Generator], Order]


def _with_bytes(order: Order, change: Callable[[bytes], bytes], random: np.random.Generator) -> Order:
    """Return the order with other bytes in its vector, or in its dense part if it has one."""
    if order.dense is not None and random.random() < 0.2:
        return dataclasses.replace(order, dense=_changed(order.dense, change))
    vector = order.vector
    return dataclasses.replace(order, vector=change(vector) if isinstance(vector, bytes) else _changed(vector, change))


def _changed(array: NDArray[Any], change: Callable[[bytes], bytes]) -> NDArray[Any]:
    data = change(array.tobytes())
    return np.frombuffer(data[: len(data) // array.itemsize * array.itemsize], array.dtype)


def _flip(data: bytes, random: np.random.Generator, end: int) -> bytes:
    changed = bytearray(data)
    for position in random.integers(0, max(1, min(len(data), end)), random.integers(1, 9)):
        changed[position] ^= 1 << int(random.integers(8))
    return bytes(changed)


def order_flip_bits(order: Order, other: Order, random: np.random.Generator) -> Order:
    return _with_bytes(order, lambda data: _flip(data, random, len(data)), random)


def order_flip_front(order: Order, other: Order, random: np.random.Generator) -> Order:
    """Flip bits in the front, which holds steps, tables, scales and counts."""
    return _with_bytes(order, lambda data: _flip(data, random, 160), random)


def order_extreme(order: Order, other: Order, random: np.random.Generator) -> Order:
    """Insert a stretch of zeros, ones, largest float32 values, or invalid steps."""

    def change(data: bytes) -> bytes:
        start = int(random.integers(0, min(len(data), 200 if random.random() < 0.5 else len(data)) + 1))
        length = int(random.choice([1, 4, 8, len(data)]))
        pattern = [b"\0", b"\xff", b"\xff\xff\x7f\x7f", struct.pack("<f", -1), struct.pack("<f", np.nan)]
        piece = (pattern[int(random.integers(5))] * length)[: min(length, len(data) - start)]
        return data[:start] + piece + data[start + len(piece) :]

    return _with_bytes(order, change, random)


def order_cut_off(order: Order, other: Order, random: np.random.Generator) -> Order:
    return _with_bytes(order, lambda data: data[: int(random.integers(0, len(data)))], random)


def order_inflate(order: Order, other: Order, random: np.random.Generator) -> Order:
    size = int(random.choice([1, 4, 64, 1 << 16]))
    return _with_bytes(order, lambda data: data + random.bytes(size), random)


def order_random(order: Order, other: Order, random: np.random.Generator) -> Order:
    return _with_bytes(order, lambda data: random.bytes(len(data)), random)


def order_base(order: Order, other: Order, random: np.random.Generator) -> Order:
    """Change the base or the checksum."""
    base, checksum = int(random.integers(0, 5)), int(random.choice([0, order.checksum, int(random.integers(1 << 32))]))
    return dataclasses.replace(order, base=base, checksum=checksum)


def order_splice(order: Order, other: Order, random: np.random.Generator) -> Order:
    """Replace the content by that of another type of downlink."""
    if random.random() < 0.5:
        return dataclasses.replace(order, vector=other.vector, dense=other.dense)
    with np.errstate(invalid="ignore"):
        vector = np.frombuffer(order.vector, np.uint8) if isinstance(order.vector, bytes) else order.vector
        vector = vector.astype(["<f4", "<f2", "<u2", "u1", "<i8"][int(random.integers(5))])
    return dataclasses.replace(order, vector=vector.reshape(1, -1) if random.random() < 0.5 else vector)


ORDER_MUTATIONS: tuple[OrderMutation, ...] = (
    order_flip_bits, order_flip_front, order_extreme, order_cut_off, order_inflate, order_random, order_base,
    order_splice,
)  # fmt: skip
