"""A grid as bytes, tensor by tensor: against nothing, or against another grid that the reader has.

Where that base has the same step, what is coded is by how much the counts differ from its counts; else the counts.

Layout, for each tensor: a byte with the kind (its two lowest bits), whether a step follows (float32; without one it is
the base's, and what is coded are differences), and whether the number of elements beyond the tables does (uint32). Then

- ALIKE: nothing, for all symbols are 0;
- TABLE: a table;
- SIGNS: three tables, for elements whose count in the base is negative, zero, positive;
- FALL: the largest symbol K and how fast probabilities fall with its size (a byte each).

A table is the smallest and the largest symbol (int8 each) and a weight of each one between (a byte each, see
`_weights`), then one of those beyond, if there are any. Behind the tensors follow the elements beyond (int32), and the
coder's words.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import constriction
import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import slices
from fedmrn_app.wire.entropy import categorical, fall_of, falling, read_words, write_words
from fedmrn_app.wire.lattice import FAR, Lattice

ALIKE, TABLE, SIGNS, FALL = range(4)
_STEP, _BEYOND = 4, 8  # bits of a tensor's first byte
_EDGE = 127  # the largest symbol of a table


@dataclass(frozen=True)
class Run:
    """Symbols 0..n-1 under one model; `symbols` is None as long as they are to be read."""

    weights: NDArray[np.float64]
    symbols: NDArray[np.int32] | None = None


def encode_grid(grid: Lattice, sizes: Sequence[int], base: Lattice | None = None) -> bytes:
    """Encode a grid.

    Args:
        grid: of T tensors.
        sizes: their elements.
        base: what the reader has, of the same tensors.
    """
    heads, far, runs = [], [], []
    for tensor, part in enumerate(slices(sizes)):
        step, symbols, before = grid.steps[tensor], grid.counts[part], None
        if base is not None and base.steps[tensor] == step:
            before = base.counts[part]
            symbols = symbols - before
        kind, head, coded = _best(symbols, before)
        beyond = symbols[np.abs(symbols) > _EDGE].astype("<i4") if kind in (TABLE, SIGNS) else symbols[:0]
        first = kind | (_STEP if before is None else 0) | (_BEYOND if beyond.size else 0)
        heads.append(bytes([first]))
        heads.append(struct.pack("<f", step) if before is None else b"")
        heads.append(struct.pack("<I", beyond.size) if beyond.size else b"")
        heads.append(head)
        far.append(beyond.tobytes())
        runs += coded
    coder = constriction.stream.stack.AnsCoder()
    for run in reversed(runs):
        if np.count_nonzero(run.weights) > 1:
            coder.encode_reverse(run.symbols, categorical(run.weights))
    return b"".join([*heads, *far, write_words(coder)])


def decode_grid(data: bytes, sizes: Sequence[int], base: Lattice | None = None) -> Lattice:
    """Read what `encode_grid` wrote.

    Args:
        data: the bytes.
        sizes: the elements of each tensor.
        base: the same as the writer's.

    Raises:
        PayloadError: `data` is not what `encode_grid` makes of such a grid.
    """
    reader = _Reader(data)
    heads = [_read_head(reader, size, base is not None) for size in sizes]
    beyond = sum(head.beyond for head in heads)
    far = np.frombuffer(reader.take(4 * beyond), "<i4")
    coder = read_words(reader.take(len(reader.view) - reader.at))
    steps, counts = np.empty(len(sizes), np.float32), np.empty(sum(sizes), np.int32)
    for tensor, (head, part) in enumerate(zip(heads, slices(sizes), strict=True)):
        before = None if base is None or head.step is not None else base.counts[part]
        steps[tensor] = head.step if before is None or base is None else base.steps[tensor]
        symbols = _read_symbols(coder, head, counts[part].size, before)
        out = symbols == _EDGE + 1
        if head.kind in (TABLE, SIGNS):
            if np.count_nonzero(out) != head.beyond:
                raise PayloadError(f"grid announces {head.beyond} elements beyond and has {np.count_nonzero(out)}")
            symbols[out], far = far[: head.beyond], far[head.beyond :]
        if before is not None:
            symbols += before
        if symbols.size and max(-int(symbols.min()), int(symbols.max())) > FAR:
            raise PayloadError(f"grid has counts above {FAR}")
        counts[part] = symbols
    if not coder.is_empty():
        raise PayloadError("grid goes on after its last element")
    return Lattice(steps, counts)


@dataclass(frozen=True)
class _Head:
    """Of one tensor; `step` is None for the base's. Each table is its smallest symbol, and the weights."""

    kind: int
    step: np.float32 | None
    beyond: int
    tables: Sequence[tuple[int, NDArray[np.float64]]]


class _Reader:
    """Takes bytes one after another."""

    def __init__(self, data: bytes) -> None:
        self.view = memoryview(data)
        self.at = 0

    def take(self, count: int) -> memoryview:
        if len(self.view) < self.at + count:
            raise PayloadError("grid ends too early")
        self.at += count
        return self.view[self.at - count : self.at]

    def unpack(self, code: str) -> tuple[Any, ...]:
        return struct.unpack(code, self.take(struct.calcsize(code)))


def _read_head(reader: _Reader, size: int, has_base: bool) -> _Head:
    (first,) = reader.unpack("<B")
    kind, step, beyond = first & 3, None, 0
    if first > 15 or not (has_base or first & _STEP) or (kind == SIGNS and first & _STEP):
        raise PayloadError(f"grid has a tensor of an unknown kind, {first}")
    if first & _STEP:
        step = np.float32(reader.unpack("<f")[0])
        if not (np.isfinite(step) and step > 0):
            raise PayloadError(f"grid has a step of {step}")
    if first & _BEYOND:
        (beyond,) = reader.unpack("<I")
        if beyond > size or kind not in (TABLE, SIGNS):
            raise PayloadError(f"grid has {beyond} elements beyond in a tensor of {size}")
    tables = []
    if kind == FALL:
        largest, fall = reader.unpack("<BB")
        tables.append((-largest, falling(largest, fall)))
    elif kind != ALIKE:
        for _ in range(3 if kind == SIGNS else 1):
            low, high = reader.unpack("<bb")
            if low < -_EDGE or high < low - 1:
                raise PayloadError(f"grid has a table from {low} to {high}")
            table = np.frombuffer(reader.take(high - low + 1 + (beyond > 0)), np.uint8)
            weights = _weights(table)
            if beyond:  # those beyond are symbol _EDGE + 1
                weights = np.concatenate([weights[:-1], np.zeros(_EDGE - high), weights[-1:]])
            tables.append((low, weights))
    return _Head(kind, step, beyond, tables)


def _read_symbols(coder: Any, head: _Head, size: int, before: NDArray[np.int32] | None) -> NDArray[np.int64]:
    symbols = np.zeros(size, np.int64)
    if head.kind == ALIKE:
        return symbols
    for (low, weights), where in zip(head.tables, _contexts(head.kind, before), strict=True):
        count = size if where is None else int(np.count_nonzero(where))
        present = np.flatnonzero(weights)
        if count and not present.size:
            raise PayloadError("grid has a table without symbols")
        if present.size > 1:
            run = coder.decode(categorical(weights), count)
        else:
            run = np.full(count, present[0] if count else 0, np.int32)
        symbols[slice(None) if where is None else where] = run + np.int64(low)
    return symbols


def _contexts(kind: int, before: NDArray[np.int32] | None) -> list[NDArray[np.bool_] | None]:
    """Which elements each table is for."""
    if kind != SIGNS or before is None:
        return [None]
    return [before < 0, before == 0, before > 0]


def _best(symbols: NDArray[np.int32], before: NDArray[np.int32] | None) -> tuple[int, bytes, list[Run]]:
    """The kind that takes the fewest bytes, what follows in the head, and what is to be coded."""
    largest = int(np.abs(symbols).max(initial=0))
    if largest == 0:
        return ALIKE, b"", []
    has_beyond = largest > _EDGE
    offset = np.where(np.abs(symbols) > _EDGE, _EDGE + 1, symbols) if has_beyond else symbols
    found = []
    if largest <= 255:
        found.append((FALL, *_fall(symbols, largest)))
    for kind in (TABLE,) if before is None else (TABLE, SIGNS):
        parts = [offset if where is None else offset[where] for where in _contexts(kind, before)]
        tables = [_table(part, has_beyond) for part in parts]
        found.append((kind, b"".join(head for head, _ in tables), [run for _, run in tables]))
    return min(found, key=lambda one: len(one[1]) + sum(_bits(run) for run in one[2]) / 8)


def _table(part: NDArray[np.int32], has_beyond: bool) -> tuple[bytes, Run]:
    """The table of symbols up to _EDGE, and _EDGE + 1 for those beyond."""
    counts = np.bincount(part + _EDGE, minlength=2 * _EDGE + 2)
    inside = np.flatnonzero(counts[:-1])
    low, high = (int(inside[0]), int(inside[-1])) if inside.size else (_EDGE, _EDGE - 1)
    weights = _quantise(counts)
    head = struct.pack("<bb", low - _EDGE, high - _EDGE) + weights[low : high + 1].tobytes()
    if has_beyond:
        head += weights[-1:].tobytes()
    weights = weights[low:] if has_beyond else weights[low : high + 1]
    return head, Run(_weights(weights), (part + np.int32(_EDGE - low)).astype(np.int32))


def _fall(symbols: NDArray[np.int32], largest: int) -> tuple[bytes, list[Run]]:
    fall = fall_of(symbols)
    return bytes([largest, fall]), [Run(falling(largest, fall), symbols + np.int32(largest))]


def _bits(run: Run) -> float:
    """About what the run takes."""
    counts = np.bincount(run.symbols, minlength=run.weights.size)  # type: ignore[arg-type]
    shares = np.maximum(run.weights / max(run.weights.sum(), 1e-300), 2.0**-24)
    return float(-(counts * np.log2(shares)).sum())


def _quantise(counts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Counts as bytes whose `_weights` are in about their proportion; 0 for what does not occur, and nothing else."""
    coarse = _weights(np.arange(1, 256, dtype=np.uint8))
    share = counts * (coarse[-1] / max(1, counts.max(initial=0)))
    byte = 1 + np.clip(np.searchsorted(coarse, share), 0, 254)
    return np.where(counts > 0, byte, 0).astype(np.uint8)


def _weights(table: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The weight of each byte: eight to the doubling, from whole numbers; 0 for 0."""
    b = table.astype(np.int64) - 1
    return np.where(table > 0, np.left_shift(8 + (b & 7), np.maximum(b, 0) >> 3), 0).astype(np.float64)
