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
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.kernels.histogram import MOST, histogram
from fedmrn_app.layout import slices
from fedmrn_app.wire.entropy import (
    LANES,
    SymbolReader,
    categorical,
    decay_of,
    encode_symbols,
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
    heads, escapes, coded = [], [], list[_Coded]()
    for tensor, part in enumerate(slices(sizes)):
        step, symbols, before = lattice.steps[tensor], lattice.counts[part], None
        if base is not None and base.steps[tensor] == step:
            before = base.counts[part]
            symbols = np.subtract(symbols, before, dtype=np.int32)
        best = _best(symbols, before)
        escaped = best.escaped
        heads.append(bytes([best.kind | (_STEP if before is None else 0) | (_ESCAPED if escaped.size else 0)]))
        heads.append(struct.pack("<f", step) if before is None else b"")
        heads.append(struct.pack("<I", escaped.size) if escaped.size else b"")
        heads.append(best.model)
        escapes.append(escaped.tobytes())
        coded.append(best)
    lanes = lanes_of(sum(bits for one in coded for bits in one.bits) / 8)
    if lanes > 1:
        heads[0] = bytes([heads[0][0] | _LANED])
    runs = [(symbols, categorical(weights)) for one in coded for symbols, weights in one.runs]
    return b"".join([*heads, *escapes, encode_symbols(runs, lanes)])


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
        symbols = counts[part]
        _read_symbols(coded, head, before, symbols)
        if head.escaped:
            escaped = symbols == _EDGE + 1
            if np.count_nonzero(escaped) != head.escaped:
                raise _malformed(f"announces {head.escaped} elements beyond and has {np.count_nonzero(escaped)}")
            wide = symbols.astype(np.int64)
            wide[escaped], escapes = escapes[: head.escaped], escapes[head.escaped :]
            wide += 0 if before is None else before
            _check_range(wide)
            symbols[:] = wide
        elif before is not None:  # the sum of a count and a symbol fits
            symbols += before
            _check_range(symbols)
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


def _read_symbols(coded: SymbolReader, head: _Head, before: NDArray[np.int32] | None, out: NDArray[np.int32]) -> None:
    """Read the symbols of a tensor, int32 (size,)."""
    if head.kind == ALIKE:
        out[:] = 0
        return
    for (low, weights), context in zip(head.tables, _contexts(head.kind, before), strict=True):
        count = out.size if context is None else int(np.count_nonzero(context))
        present = np.flatnonzero(weights)
        if count and not present.size:
            raise _malformed("has a table without symbols")
        if present.size > 1:
            run = coded.read(categorical(weights), count).view(np.int16)
        else:
            run = np.full(count, present[0] if count else 0, np.int16)
        run += np.int16(low)
        if context is None:
            out[:] = run
        else:
            out[context] = run


def _check_range(counts: NDArray[Any]) -> None:
    if counts.size and max(-int(counts.min()), int(counts.max())) > FAR:
        raise PayloadError(f"lattice has counts above {FAR}", code="range")


def _malformed(problem: str) -> PayloadError:
    return PayloadError(f"lattice {problem}", code="malformed")


# models


@dataclass(frozen=True)
class _Run:
    """Some symbols 0..n-1 and their model.

    Attributes:
        chosen: the elements, bool (size,); None for all.
        low: what stands for symbol 0.
        counts: how often each symbol occurs, int64 (n,).
        weights: of the model, float64 (n,).
    """

    chosen: NDArray[np.bool_] | None
    low: int
    counts: NDArray[np.int64]
    weights: NDArray[np.float64]

    @property
    def bits(self) -> float:
        """Estimate of the coded length."""
        probabilities = np.maximum(self.weights / max(self.weights.sum(), 1e-300), 2.0**-24)
        return float(-(self.counts * np.log2(probabilities)).sum())

    def symbols(self, values: NDArray[Any]) -> NDArray[np.uint16]:
        """Return the symbols of a tensor's values, (size,)."""
        part = values if self.chosen is None else values[self.chosen]
        found = np.empty(part.size, np.uint16)
        np.subtract(part, np.int32(self.low), out=found, dtype=np.int32, casting="unsafe")
        return found


def _contexts(kind: int, before: NDArray[np.int32] | None) -> list[NDArray[np.bool_] | None]:
    """Return the elements that each table is for; None for all."""
    if kind != SIGNS or before is None:
        return [None]
    return [before < 0, before == 0, before > 0]


@dataclass(frozen=True)
class _Candidate:
    """A kind for a tensor, its model as bytes, and its runs without their elements."""

    kind: int
    model: bytes
    runs: list[_Run]

    @property
    def size(self) -> float:
        """Estimate of the coded bytes."""
        return len(self.model) + sum(run.bits for run in self.runs) / 8


class _Coded(NamedTuple):
    """A tensor as it is coded.

    Attributes:
        kind: of the model, see above.
        model: its bytes.
        bits: about how many bits each of its runs takes.
        runs: the symbols of each run that varies, uint16, and the weights of their model.
        escaped: the symbols beyond the largest of a table, int32.
    """

    kind: int
    model: bytes
    bits: Sequence[float]
    runs: Sequence[tuple[NDArray[np.uint16], NDArray[np.float64]]]
    escaped: NDArray[Any]


def _best(symbols: NDArray[Any], before: NDArray[Any] | None) -> _Coded:
    """Return a tensor in the kind that takes the fewest bytes."""
    none = np.zeros(0, "<i4")
    counts, largest = histogram(symbols, before)
    if largest == 0:
        return _Coded(ALIKE, b"", (), (), none)
    escapes, total = largest > _EDGE, counts.sum(axis=0)
    candidates = []
    if largest <= MOST:
        mean = float((np.abs(np.arange(-MOST, MOST + 1)) * total[:-1]).sum()) / symbols.size
        decay, inner = decay_of(mean), total[MOST - largest : MOST + largest + 1]
        run = _Run(None, -largest, inner, geometric_weights(largest, decay))
        candidates.append(_Candidate(DECAY, bytes([largest, decay]), [run]))
    for kind in (TABLE,) if before is None else (TABLE, SIGNS):
        tables = [_table(part, escapes) for part in (counts if kind == SIGNS else (total,))]
        candidates.append(_Candidate(kind, b"".join(head for head, _ in tables), [run for _, run in tables]))
    best = min(candidates, key=lambda one: one.size)
    values, escaped = symbols, none
    if escapes and best.kind != DECAY:
        beyond = np.abs(symbols) > _EDGE
        values, escaped = np.where(beyond, np.int32(_EDGE + 1), symbols), symbols[beyond].astype("<i4")
    pairs = zip(best.runs, _contexts(best.kind, before), strict=True)
    runs = [replace(run, chosen=chosen) for run, chosen in pairs if np.count_nonzero(run.weights) > 1]
    coded = [(run.symbols(values), run.weights) for run in runs]
    return _Coded(best.kind, best.model, [run.bits for run in best.runs], coded, escaped)


def _table(counts: NDArray[np.int64], escapes: bool) -> tuple[bytes, _Run]:
    """Return the table of the symbols as bytes, and the run; with `escapes` it has a weight for the escape.

    Args:
        counts: of the symbols -255 to 255 and of those beyond, int64 (512,).
        escapes: whether symbols of any run escape.
    """
    inner = counts[MOST - _EDGE : MOST + _EDGE + 1]
    counts = np.append(inner, counts.sum() - inner.sum())
    inside = np.flatnonzero(inner)
    low, high = (int(inside[0]), int(inside[-1])) if inside.size else (_EDGE, _EDGE - 1)
    table = _quantize(counts)
    head = struct.pack("<bb", low - _EDGE, high - _EDGE) + table[low : high + 1].tobytes()
    if escapes:
        head += table[-1:].tobytes()
    part = slice(low, None) if escapes else slice(low, high + 1)
    return head, _Run(None, low - _EDGE, counts[part], _weights(table[part]))


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
