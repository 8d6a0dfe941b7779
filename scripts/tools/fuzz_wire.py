"""Damage messages in many ways, read them as their receivers do, and count the outcomes.

Usage: python scripts/tools/fuzz_wire.py [--n 200000] [--seed 0] [--start 0] [--method NAME ...]

The payloads come from clients that trained on the digits, in every form of body and dense part; every other message is
an order of the server, in every type of downlink. Forms for long bodies are written for these short ones too. A
message must be refused with a reason or be read as finite numbers, within a second and ten times the model's memory;
anything else is printed with what reproduces it, and the exit code is 1. The tables of `quantized` and of estimates,
whose size is the same for every model, do not count as memory.
"""

from __future__ import annotations

import argparse
import re
import struct
import sys
import time
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.server import OpenRound, close_round, open_round
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods import find_methods
from fedmrn_app.wire.body import CODERS, FACTORED, LANED
from fedmrn_app.wire.payload import HEADER_SIZE
from scripts.tools.fuzz_downlink import ORDER_MUTATIONS, TABLES, OrderSample, in_lanes, make_orders
from tests.plain.upload import read_upload

MAX_SECONDS = 1.0
MAX_MODELS = 10
CHECKSUM_OFFSET = HEADER_SIZE - 4
# a client of one label has an update of few directions, so that its mask is written with an estimate
ESTIMATED = ("clients=100", "partition=label_shard", "partition.labels_per_client=1", "noise.alpha=0.003")
FIELDS = {"B": [0, 1, 2, 3, 4, 5], "I": [6, 18, 22, 26], "Q": [10], "f": [30, 34, 38]}  # offsets in the header


Read = tuple[Float32Array, Float32Array]


@dataclass(frozen=True)
class Case:
    """One damaged message: its sample, its damage, how it is read, and whether it is unchanged."""

    sample: Sample | OrderSample
    damage: str
    read: Callable[[], Read]
    unchanged: bool


@dataclass(frozen=True)
class Sample:
    """A real payload of the only client of a round."""

    name: str
    data: bytes
    opened: OpenRound

    @property
    def weights(self) -> int:
        return self.opened.state.vector.size

    @property
    def model_bytes(self) -> int:
        return 4 * (self.weights + self.opened.state.dense.size)

    @property
    def table_bytes(self) -> int:
        return TABLES if self.form == FACTORED or self.opened.protocol.method.name == "quantized" else 0

    @property
    def form(self) -> int:
        """The form of the body."""
        return self.data[4]

    def read(self, data: bytes) -> Read:
        """Read a payload as the server does."""
        known = self.opened.context(0)
        header = self.opened.header(0, known)
        upload = read_upload(data, self.opened.protocol, header, known, self.opened.dense)
        return upload.vector, upload.dense


def make_samples(names: list[str]) -> list[Sample]:
    """Train one client in the second round, so that weights have moved."""
    samples = []
    for name in names:
        for options in find_methods()[name].layouts:
            method: tuple[str, ...] = (
                f"strategy={name}",
                *(f"strategy.{option}={value}" for option, value in options.items()),
            )
            if name in ("fedmrn", "fedmrns") and not options:
                method += ESTIMATED
            made = [make_sample(method, *wire) for wire in product(CODERS, (6, 16, 32))]
            with in_lanes():
                laned = make_sample(method, "auto", 6)
            samples += [*made, laned] if laned.form == LANED else made
    return samples


def make_sample(method: tuple[str, ...], coder: str, bits: int) -> Sample:
    wire = (f"uplink.coder={coder}", f"uplink.dense_bits={bits}", "uplink.bits=null")
    worker = build_worker(load_config((*method, *wire, "local.epochs=1")))
    _, protocol = worker.model()
    state = protocol.begin()
    for number in (1, 2):
        opened = open_round(protocol, state, number, {0: worker.sample_count(0)}, 1)
        data = worker.train(opened.order(0)).payload
        state, _ = close_round(opened, {0: data})
    return Sample(f"{' '.join(method)} {coder} {bits} form {data[4]}", data, opened)


def with_checksum(data: bytes) -> bytes:
    """Return the payload with a valid checksum."""
    checksum = zlib.crc32(data[HEADER_SIZE:], zlib.crc32(data[:CHECKSUM_OFFSET]))
    return data[:CHECKSUM_OFFSET] + struct.pack("<I", checksum) + data[HEADER_SIZE:]


Mutation = Callable[[bytes, bytes, np.random.Generator], bytes]


def flip_bits(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for position in random.integers(0, len(data), random.integers(1, 9)):
        changed[position] ^= 1 << int(random.integers(8))
    return bytes(changed)


def flip_content(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    return with_checksum(data[:HEADER_SIZE] + flip_bits(data[HEADER_SIZE:], other, random))


def flip_front(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    """Flip bits in the front, which holds counts, scales and coefficients."""
    end = HEADER_SIZE + 64
    return with_checksum(data[:HEADER_SIZE] + flip_bits(data[HEADER_SIZE:end], other, random) + data[end:])


def change_field(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    kind = str(random.choice(list(FIELDS)))
    offset, size = int(random.choice(FIELDS[kind])), struct.calcsize(kind)
    extremes = [b"\0" * size, b"\xff" * size, b"\x80" + b"\0" * (size - 1), b"\x01" + b"\0" * (size - 1)]
    value = random.bytes(size) if random.random() < 0.5 else extremes[int(random.integers(4))]
    return with_checksum(data[:offset] + value + data[offset + size :])


def resize_body(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    """Remove bytes from the body or insert some, with a header that agrees."""
    (body_size,) = struct.unpack_from("<I", data, 26)
    cut = int(random.integers(0, body_size + 1)) if random.random() < 0.5 else body_size - int(random.integers(0, 9))
    cut = max(cut, 0)
    extra = random.bytes(int(random.integers(0, 9)))
    body = data[HEADER_SIZE : HEADER_SIZE + cut] + extra
    head = data[:26] + struct.pack("<I", len(body)) + data[30:HEADER_SIZE]
    return with_checksum(head + body + data[HEADER_SIZE + body_size :])


def cut_off(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    cut = data[: int(random.integers(0, len(data)))]
    return with_checksum(cut) if len(cut) >= HEADER_SIZE else cut


def add_bytes(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    return with_checksum(data + random.bytes(int(random.integers(1, 100))))


def random_content(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    return with_checksum(data[:HEADER_SIZE] + random.bytes(len(data) - HEADER_SIZE))


def extreme_content(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    """Insert a stretch of zeros, ones or largest float32 values."""
    start, stop = sorted(random.integers(HEADER_SIZE, len(data) + 1, 2))
    pattern = [b"\0", b"\xff", b"\xff\xff\x7f\x7f"][int(random.integers(3))]
    filled = (pattern * (int(stop - start) // len(pattern) + 1))[: int(stop - start)]
    return with_checksum(data[:start] + filled + data[stop:])


def splice(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    """Put the header of one method's payload before the content of another one's."""
    return with_checksum(data[:HEADER_SIZE] + other[HEADER_SIZE:])


MUTATIONS: tuple[Mutation, ...] = (
    flip_bits, flip_content, flip_front, change_field, resize_body, cut_off, add_bytes, random_content,
    extreme_content, splice,
)  # fmt: skip


def make_case(number: int, seed: int, samples: list[Sample], orders: list[OrderSample]) -> Case:
    """Return the message with this number: alternately a payload and an order."""
    random = np.random.default_rng([seed, number])
    number, is_order = number // 2, number % 2
    if is_order:
        order, another = orders[number % len(orders)], orders[int(random.integers(len(orders)))]
        change = ORDER_MUTATIONS[number // len(orders) % len(ORDER_MUTATIONS)]
        sent = change(order.order, another.order, random)
        return Case(order, change.__name__, lambda: order.read(sent), order.same(sent))
    sample, other = samples[number % len(samples)], samples[int(random.integers(len(samples)))]
    mutation = MUTATIONS[number // len(samples) % len(MUTATIONS)]
    data = mutation(sample.data, other.data, random)
    return Case(sample, mutation.__name__, lambda: sample.read(data), data == sample.data)


def main() -> int:
    parser = argparse.ArgumentParser(description="Read damaged messages of every kind and count what happens.")
    parser.add_argument("--n", type=int, default=200_000, help="how many messages")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first message, to repeat one that is bad")
    parser.add_argument("--method", nargs="+", choices=sorted(find_methods()), default=sorted(find_methods()))
    arguments = parser.parse_args()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    samples, orders = make_samples(arguments.method), make_orders()
    outcomes: dict[str, Counter[str]] = {kind.__name__: Counter() for kind in (*MUTATIONS, *ORDER_MUTATIONS)}
    reasons: Counter[str] = Counter()
    slowest, largest, bad = 0.0, 0.0, 0
    tracemalloc.start()
    for number in track(
        range(arguments.start, arguments.start + arguments.n), "messages", console=console, transient=True
    ):
        case = make_case(number, arguments.seed, samples, orders)
        said = f"message {number} ({case.sample.name}, {case.damage})"
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        start = time.process_time()  # other processes may hold this one up
        try:
            vector, dense = case.read()
            finite = np.isfinite(vector).all() and np.isfinite(dense).all()
            if not finite or vector.size != case.sample.weights:
                raise ValueError("read as numbers that are not finite, or too few")
            outcome = "unchanged" if case.unchanged else "harmless"
        except PayloadError as error:
            outcome = "refused"
            reasons[re.sub(r"b(['\"]).*?\1(?=,)|-?\d+", "#", str(error))] += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            outcome = "crashed"
            console.print(f"{said}: {error!r}")
        seconds = time.process_time() - start
        used = tracemalloc.get_traced_memory()[1] - before - case.sample.table_bytes
        models = used / case.sample.model_bytes
        slowest, largest = max(slowest, seconds), max(largest, models)
        if seconds > MAX_SECONDS or models > MAX_MODELS:
            console.print(f"{said}: {seconds:.2f} s, {models:.1f} models")
            outcome = "too slow or large"
        bad += outcome in ("crashed", "too slow or large")
        outcomes[case.damage][outcome] += 1
    columns = ("refused", "harmless", "unchanged", "crashed", "too slow or large")
    table = Table("damage", *columns)
    for kind, counts in outcomes.items():
        table.add_row(kind, *(str(counts[column]) for column in columns))
    total = sum(outcomes.values(), Counter[str]())
    table.add_row("all", *(str(total[column]) for column in columns))
    console.print(table)
    why = Table("refused because", "messages")
    for reason, count in reasons.most_common():
        why.add_row(reason, str(count))
    console.print(why)
    console.print(f"slowest {slowest * 1000:.1f} ms, most memory {largest:.2f} times the model")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
