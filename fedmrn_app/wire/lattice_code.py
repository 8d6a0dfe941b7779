"""A lattice as bytes, tensor by tensor, by itself or against another lattice that the reader has (the base).

head of tensor 0 | head of tensor 1 | ... | escaped symbols, int32 | the other symbols, see `wire/entropy.py`

head    first      one byte: the kind (bits 0 and 1), whether a step follows (bit 2), whether symbols escape (bit 3); in
                   the head of tensor 0 also whether the symbols of all tensors are in several lanes (bit 4)
        step       float32, if bit 2 is set; otherwise the step is the base's, and the symbols are differences of
                   counts from the base's; with a step the symbols are the counts themselves
        escaped    uint32, if bit 3 is set: the number of symbols beyond -127..127
        model      by kind:
                   ALIKE   nothing, all symbols are 0
                   TABLE   one table
                   SIGNS   three tables, for elements whose count in the base is negative, zero, positive
                   DECAY   the largest symbol and the decay of a two-sided geometric distribution, a byte each
table   low, high  int8, the least and the largest symbol
        weights    a byte for each symbol between, see `_weights`, and one for the escape if symbols escape
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import slices
from fedmrn_app.wire.entropy import (
    LANES,
    SymbolReader,
    categorical,
    encode_symbols,
    fit_decay,
    geometric_weights,
    lanes_of,
)
from fedmrn_app.wire.lattice import FAR, Lattice

ALIKE, TABLE, SIGNS, DECAY = range(4)
_STEP, _ESCAPED, _LANED = 4, 8, 16  # bits of a head's first byte
_EDGE = 127  # largest symbol of a table; the escape is the next one


def encode_lattice(lattice: Lattice, sizes: Sequence[int], base: Lattice | None = None) -> bytes:
    """Encode a lattice.

    Args:
        lattice: a lattice of T tensors.
        sizes: the number of elements of each tensor.
        base: a lattice of the same tensors that the reader has.
    """
    heads, escapes, runs = [], [], []
    for tensor, part in enumerate(slices(sizes)):
        step, symbols, before = lattice.steps[tensor], lattice.counts[part], None
        if base is not None and base.steps[tensor] == step:
            before = base.counts[part]
            symbols = symbols - before
        kind, model, coded = _best(symbols, before)
        escaped = symbols[np.abs(symbols) > _EDGE].astype("<i4") if kind in (TABLE, SIGNS) else symbols[:0]
        heads.append(bytes([kind | (_STEP if before is None else 0) | (_ESCAPED if escaped.size else 0)]))
        heads.append(struct.pack("<f", step) if before is None else b"")
        heads.append(struct.pack("<I", escaped.size) if escaped.size else b"")
        heads.append(model)
        escapes.append(escaped.tobytes())
        runs += coded
    lanes = lanes_of(sum(run.bits for run in runs) / 8)
    if lanes > 1:
        heads[0] = bytes([heads[0][0] | _LANED])
    varied = [(run.symbols, categorical(run.weights)) for run in runs if np.count_nonzero(run.weights) > 1]
    return b"".join([*heads, *escapes, encode_symbols(varied, lanes)])


def decode_lattice(data: bytes, sizes: Sequence[int], base: Lattice | None = None) -> Lattice:
    """Return the lattice that `encode_lattice` encoded.

    Args:
        data: the bytes.
        sizes: the number of elements of each tensor.
        base: the writer's base.

    Raises:
        PayloadError: `data` is not what `encode_lattice` returns for such a lattice.
    """
    reader = _Reader(data)
    lanes = LANES if reader.view[:1] and reader.view[0] & _LANED else 1
    heads = [_read_head(reader, size, base is not None) for size in sizes]
    escapes = np.frombuffer(reader.take(4 * sum(head.escaped for head in heads)), "<i4")
    coded = SymbolReader(reader.take(len(reader.view) - reader.place), lanes)
    steps, counts = np.empty(len(sizes), np.float32), np.empty(sum(sizes), np.int32)
    for tensor, (head, part) in enumerate(zip(heads, slices(sizes), strict=True)):
        before = None if base is None or head.step is not None else base.counts[part]
        steps[tensor] = head.step if before is None or base is None else base.steps[tensor]
        symbols = _read_symbols(coded, head, counts[part].size, before)
        if head.kind in (TABLE, SIGNS):
            escaped = symbols == _EDGE + 1
            if np.count_nonzero(escaped) != head.escaped:
                raise _malformed(f"announces {head.escaped} elements beyond and has {np.count_nonzero(escaped)}")
            symbols[escaped], escapes = escapes[: head.escaped], escapes[head.escaped :]
        if before is not None:
            symbols += before
        if symbols.size and max(-int(symbols.min()), int(symbols.max())) > FAR:
            raise PayloadError(f"lattice has counts above {FAR}", code="range")
        counts[part] = symbols
    coded.check_end("lattice")
    return Lattice(steps, counts)


# reading


@dataclass(frozen=True)
class _Head:
    """The head of one tensor; each table is its least symbol and the weights. Without a step it is the base's."""

    kind: int
    step: np.float32 | None
    escaped: int
    tables: Sequence[tuple[int, NDArray[np.float64]]]


class _Reader:
    """Reads bytes from the front."""

    def __init__(self, data: bytes) -> None:
        self.view = memoryview(data)
        self.place = 0

    def take(self, count: int) -> memoryview:
        if len(self.view) < self.place + count:
            raise PayloadError("lattice ends too early", code="length", value=len(self.view))
        self.place += count
        return self.view[self.place - count : self.place]

    def unpack(self, code: str) -> tuple[Any, ...]:
        return struct.unpack(code, self.take(struct.calcsize(code)))


def _read_head(reader: _Reader, size: int, has_base: bool) -> _Head:
    largest = 15 if reader.place else 15 | _LANED
    (first,) = reader.unpack("<B")
    kind, step, escaped = first & 3, None, 0
    if first > largest or not (has_base or first & _STEP) or (kind == SIGNS and first & _STEP):
        raise _malformed(f"has a tensor of an unknown kind, {first}")
    if first & _STEP:
        step = np.float32(reader.unpack("<f")[0])
        if not (np.isfinite(step) and step > 0):
            raise _malformed(f"has a step of {step}")
    if first & _ESCAPED:
        (escaped,) = reader.unpack("<I")
        if escaped > size or kind not in (TABLE, SIGNS):
            raise _malformed(f"has {escaped} elements beyond in a tensor of {size}")
    tables = []
    if kind == DECAY:
        largest, decay = reader.unpack("<BB")
        tables.append((-largest, geometric_weights(largest, decay)))
    elif kind != ALIKE:
        for _ in range(3 if kind == SIGNS else 1):
            low, high = reader.unpack("<bb")
            if low < -_EDGE or high < low - 1:
                raise _malformed(f"has a table from {low} to {high}")
            weights = _weights(np.frombuffer(reader.take(high - low + 1 + (escaped > 0)), np.uint8))
            if escaped:
                weights = np.concatenate([weights[:-1], np.zeros(_EDGE - high), weights[-1:]])
            tables.append((low, weights))
    return _Head(kind, step, escaped, tables)


def _read_symbols(coded: SymbolReader, head: _Head, size: int, before: NDArray[np.int32] | None) -> NDArray[np.int64]:
    symbols = np.zeros(size, np.int64)
    if head.kind == ALIKE:
        return symbols
    for (low, weights), context in zip(head.tables, _contexts(head.kind, before), strict=True):
        count = size if context is None else int(np.count_nonzero(context))
        present = np.flatnonzero(weights)
        if count and not present.size:
            raise _malformed("has a table without symbols")
        if present.size > 1:
            run = coded.read(categorical(weights), count)
        else:
            run = np.full(count, present[0] if count else 0, np.uint16)
        symbols[slice(None) if context is None else context] = run + np.int64(low)
    return symbols


def _malformed(problem: str) -> PayloadError:
    return PayloadError(f"lattice {problem}", code="malformed")


# models


@dataclass(frozen=True)
class _Run:
    """Symbols 0..n-1, and the weights of their model."""

    symbols: NDArray[np.int32]
    weights: NDArray[np.float64]

    @cached_property
    def bits(self) -> float:
        """Estimate of the coded length."""
        counts = np.bincount(self.symbols, minlength=self.weights.size)
        probabilities = np.maximum(self.weights / max(self.weights.sum(), 1e-300), 2.0**-24)
        return float(-(counts * np.log2(probabilities)).sum())


def _contexts(kind: int, before: NDArray[np.int32] | None) -> list[NDArray[np.bool_] | None]:
    """Return the elements that each table is for; None for all."""
    if kind != SIGNS or before is None:
        return [None]
    return [before < 0, before == 0, before > 0]


def _best(symbols: NDArray[np.int32], before: NDArray[np.int32] | None) -> tuple[int, bytes, list[_Run]]:
    """Return the kind that takes the fewest bytes, its model as bytes, and the runs to encode."""
    largest = int(np.abs(symbols).max(initial=0))
    if largest == 0:
        return ALIKE, b"", []
    escapes = largest > _EDGE
    capped = np.where(np.abs(symbols) > _EDGE, _EDGE + 1, symbols) if escapes else symbols
    candidates = []
    if largest <= 255:
        decay = fit_decay(symbols)
        run = _Run(symbols + np.int32(largest), geometric_weights(largest, decay))
        candidates.append((DECAY, bytes([largest, decay]), [run]))
    for kind in (TABLE,) if before is None else (TABLE, SIGNS):
        parts = [capped if context is None else capped[context] for context in _contexts(kind, before)]
        tables = [_table(part, escapes) for part in parts]
        candidates.append((kind, b"".join(head for head, _ in tables), [run for _, run in tables]))
    return min(candidates, key=lambda one: len(one[1]) + sum(run.bits for run in one[2]) / 8)


def _table(part: NDArray[np.int32], escapes: bool) -> tuple[bytes, _Run]:
    """Return the table of the symbols as bytes, and the run; with `escapes` it has a weight for the escape."""
    counts = np.bincount(part + _EDGE, minlength=2 * _EDGE + 2)
    inside = np.flatnonzero(counts[:-1])
    low, high = (int(inside[0]), int(inside[-1])) if inside.size else (_EDGE, _EDGE - 1)
    table = _quantize(counts)
    head = struct.pack("<bb", low - _EDGE, high - _EDGE) + table[low : high + 1].tobytes()
    if escapes:
        head += table[-1:].tobytes()
    table = table[low:] if escapes else table[low : high + 1]
    return head, _Run((part + np.int32(_EDGE - low)).astype(np.int32), _weights(table))


def _quantize(counts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return bytes whose `_weights` are about in proportion to the counts; 0 only for symbols that do not occur."""
    coarse = _weights(np.arange(1, 256, dtype=np.uint8))
    scaled = counts * (coarse[-1] / max(1, counts.max(initial=0)))
    byte = 1 + np.clip(np.searchsorted(coarse, scaled), 0, 254)
    return np.where(counts > 0, byte, 0).astype(np.uint8)


def _weights(table: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the weight of each byte: integers, eight steps per doubling; 0 for 0."""
    b = table.astype(np.int64) - 1
    return np.where(table > 0, np.left_shift(8 + (b & 7), np.maximum(b, 0) >> 3), 0).astype(np.float64)
