"""Masks in less than one bit a weight: both sides predict each bit from what they know, and code it accordingly.

What they know is the evidence: a size a in [0, 1] of each weight, such as the noise's, and a sign and a trend, such as
the noise's sign and where the weight has moved so far. Large tensors are coded in three parts, cut across the input
channels, so that the later parts are predicted from the earlier ones too: from the mean of their bits in the same row
(output channel) and of size * sign * bit in the same run (output channel and position in the kernel). In each part of
each tensor P(bit = 1) is linear in 1, a, a^2 and, for each other predictor q, q and a q; the sender fits the
coefficients. The probabilities fall into 32 levels, fine at both ends, and the bits of a level are coded eight at a
time by asymmetric numeral systems. Only operations that IEEE 754 rounds exactly, and sums of whole numbers, lead from
evidence to level, so every machine finds the same ones.

Layout: the coefficients as float16, CRC-32 of the plain packed bits (uint32), the coder's words.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import TypeVar

import constriction
import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.noise import Float32Array
from fedmrn_app.shapes import Shapes, sizes_of
from fedmrn_app.wire.bits import pack_bits, packed_size, unpack_bits
from fedmrn_app.wire.body import CODED, Body, Coder
from fedmrn_app.wire.entropy import categorical, read_words, write_words

T = TypeVar("T", bound=np.generic)

LEVELS = 32
_STEPS = 4096  # resolution of the way from probability to level
_CHUNK = 1 << 17  # bits that are sorted by level at a time
_SAMPLE = 1 << 13  # bits of a part that its coefficients are fitted to, at least where there are as many
_CUT_SIZE, _CUT_RUN = 1 << 14, 8  # the fewest elements, of a tensor and of a run, that are coded in three parts
_CHECK = struct.Struct("<I")


@dataclass(frozen=True)
class Evidence:
    """What both sides know about the bits of tensors with d elements in all, before they are coded.

    Attributes:
        shapes: the tensors' shapes; 4-D ones lie in channels-last order.
        size: float32 (d,) in [0, 1].
        sign: float32 (d,) of -1 and 1, where a bit that is set moves its weight; None if always the same way.
        trend: float32 (d,) in [-1, 1], where the weight is expected to move, times the sign; None if that is unknown.
    """

    shapes: Shapes
    size: Float32Array
    sign: Float32Array | None = None
    trend: Float32Array | None = None

    @cached_property
    def push(self) -> Float32Array:
        """What a set bit does to its weight, float32 (d,), in whole numbers: their sums are exact in any order."""
        push = self.size * np.float32(128)
        np.trunc(push, out=push)
        if self.sign is not None:
            push *= self.sign
        return push


def pack_mask(bits: NDArray[np.bool_], evidence: Callable[[], Evidence], coder: Coder) -> Body:
    """Write bits of shape (d,) in the smaller form, coded or plainly packed; `packed` is always the latter."""
    plain = Body(pack_bits(bits))
    return plain if coder == "packed" else min(Body(code_mask(bits, evidence()), CODED), plain, key=len)


def unpack_mask(body: Body, count: int, evidence: Callable[[], Evidence]) -> NDArray[np.bool_]:
    """Return the `count` bits that `body` stands for; `evidence` is asked for only where they are coded.

    Raises:
        PayloadError: anything in it is wrong.
    """
    if body.coder == CODED:
        return decode_mask(body.data, evidence())
    body.must_be_plain()
    return unpack_bits(body.data, count).view(np.bool_)


def code_mask(bits: NDArray[np.bool_], evidence: Evidence) -> bytes:
    """Encode bits of shape (d,)."""
    coefficients = []
    batches = []
    for parts in _parts(evidence.shapes):
        levels = []
        for part in parts:
            a, predictors = _predictors(part, evidence, bits)
            coefficients.append(_fit(part.of(bits), a, predictors))
            levels.append(_levels(coefficients[-1], a, predictors))
        batches.append((np.concatenate([part.of(bits) for part in parts]), np.concatenate(levels)))
    coder = constriction.stream.stack.AnsCoder()
    for batch, level in reversed(batches):
        for start in reversed(range(0, batch.size, _CHUNK)):
            _code_levels(coder, batch[start : start + _CHUNK], level[start : start + _CHUNK])
    check = _CHECK.pack(zlib.crc32(pack_bits(bits)))
    return np.concatenate(coefficients).tobytes() + check + write_words(coder)


def decode_mask(body: bytes | memoryview, evidence: Evidence) -> NDArray[np.bool_]:
    """Return the bits of shape (d,) that `code_mask` encoded with the same evidence.

    Raises:
        PayloadError: `body` is not smaller than the plain form, or not what `code_mask` makes.
    """
    count = evidence.size.size
    phases = list(_parts(evidence.shapes))
    terms = [_terms(part, evidence) for parts in phases for part in parts]
    head = 2 * sum(terms)
    if not head + _CHECK.size <= len(body) < packed_size(count):
        raise PayloadError(f"body codes a mask of {count} bits in {len(body)} bytes")
    view = memoryview(body)
    coefficients = np.frombuffer(view[:head], "<f2")
    if not np.isfinite(coefficients).all():
        raise PayloadError("body holds coefficients that are not finite")
    fitted = iter(np.split(coefficients, np.cumsum(terms)[:-1]))
    coder = read_words(view[head + _CHECK.size :])
    bits = np.zeros(count, np.bool_)
    for parts in phases:
        level = np.concatenate([_levels(next(fitted), *_predictors(part, evidence, bits)) for part in parts])
        batch = np.empty(level.size, np.bool_)
        for start in range(0, batch.size, _CHUNK):
            _decode_levels(coder, batch[start : start + _CHUNK], level[start : start + _CHUNK])
        for part, piece in zip(parts, np.split(batch, np.cumsum([part.count for part in parts])[:-1]), strict=True):
            part.view(bits)[:] = piece.reshape(part.runs, -1)
    if not coder.is_empty():
        raise PayloadError("coded body goes on after its last symbol")
    if zlib.crc32(pack_bits(bits)) != _CHECK.unpack_from(view, head)[0]:
        raise PayloadError(
            "coded mask reads as another one here: the client started from other first weights, or computes "
            "otherwise; uplink.coder=packed does without what must agree"
        )
    return bits


def softsign(x: Float32Array, shapes: Shapes) -> Float32Array:
    """x / (|x| + s) in [-1, 1], s being three times the median |x| of some nonzero elements of each tensor."""
    y = np.abs(x)
    for start, stop in pairwise(_offsets(shapes)):
        sample = y[start : stop : _stride(stop - start, 4096)]
        sample = np.sort(sample[sample > 0])
        y[start:stop] += np.float32(3) * sample[sample.size // 2] if sample.size else np.float32(1)
    np.divide(x, y, out=y)
    return y


@dataclass(frozen=True)
class _Part:
    """Elements first..last of each run of one tensor; a run is what lies next to each other in memory."""

    start: int
    runs: int
    runs_a_row: int
    run: int
    first: int
    last: int

    @property
    def count(self) -> int:
        return self.runs * (self.last - self.first)

    def tensor(self, vector: NDArray[T]) -> NDArray[T]:
        """The whole tensor in `vector` (d,), shape (runs, run)."""
        return vector[self.start : self.start + self.runs * self.run].reshape(self.runs, self.run)

    def view(self, vector: NDArray[T]) -> NDArray[T]:
        """The part in `vector` (d,), shape (runs, last - first)."""
        return self.tensor(vector)[:, self.first : self.last]

    def of(self, vector: NDArray[T]) -> NDArray[T]:
        """The part in `vector` (d,), shape (count,)."""
        return self.view(vector).reshape(-1)


def _parts(shapes: Shapes) -> Iterator[list[_Part]]:
    """The parts that are coded first, those that are coded when they are known, and so on."""
    offsets = _offsets(shapes)
    for phase in range(3):
        parts = []
        for shape, size, start in zip(shapes, sizes_of(shapes), offsets[:-1], strict=True):
            run = shape[1] if len(shape) == 4 else shape[-1]
            cut = size >= _CUT_SIZE and run >= _CUT_RUN
            cuts = (0, run // 8, run // 2, run) if cut else (0, run, run, run)
            if cuts[phase] < cuts[phase + 1]:
                parts.append(_Part(start, size // run, size // run // shape[0], run, cuts[phase], cuts[phase + 1]))
        if parts:
            yield parts


def _offsets(shapes: Shapes) -> list[int]:
    return [0, *np.cumsum(sizes_of(shapes)).tolist()]


def _stride(count: int, wanted: int) -> int:
    """A step through `count` elements that meets `wanted` or more of them, odd so that it meets all channels."""
    return max(1, count // wanted - 1) | 1


def _terms(part: _Part, evidence: Evidence) -> int:
    return 3 + 2 * ((evidence.trend is not None) + 2 * (part.first > 0))


def _predictors(part: _Part, evidence: Evidence, bits: NDArray[np.bool_]) -> tuple[Float32Array, list[Float32Array]]:
    """The sizes a of a part and its other predictors q, float32 (count,); of `bits` only earlier parts are read."""
    a = part.of(evidence.size)
    predictors = []
    if evidence.trend is not None:
        predictors.append(part.of(evidence.trend))
    if part.first > 0:
        known = part.tensor(bits)[:, : part.first].astype(np.float32)
        rows = known.sum(1).reshape(-1, part.runs_a_row).sum(1)
        pushes = (part.tensor(evidence.push)[:, : part.first] * known).sum(1)
        q = np.repeat(pushes / np.float32(128 * (part.first + 4)), part.last - part.first)
        if evidence.sign is not None:
            q *= part.of(evidence.sign)
        predictors.append(q)
        density = rows / np.float32(part.first * part.runs_a_row)
        density -= np.float32(rows.sum(dtype=np.float64)) / np.float32(part.first * part.runs)
        predictors.append(np.repeat(density, part.runs_a_row * (part.last - part.first)))
    return a, predictors


def _fit(bits: NDArray[np.bool_], a: Float32Array, predictors: list[Float32Array]) -> NDArray[np.float16]:
    """Least squares on a sample, a little towards zero so that useless evidence does no harm."""
    every = _stride(bits.size, max(_SAMPLE, bits.size // 16))
    y, a = bits[::every].astype(np.float32), a[::every]
    columns = [np.ones_like(y), a, a * a]
    for q in predictors:
        columns += [q[::every], q[::every] * a]
    x = np.stack(columns)
    mean = y.mean()  # the constant is not drawn to zero
    ridge = (1e-6 * y.size + 1e-3) * np.eye(len(x))
    solution = np.linalg.solve((x @ x.T).astype(np.float64) + ridge, (x @ (y - mean)).astype(np.float64))
    solution[0] += mean
    return np.clip(solution, -60000, 60000).astype("<f2")


def _levels(c: NDArray[np.float16], a: Float32Array, predictors: list[Float32Array]) -> NDArray[np.uint8]:
    """The level of each bit's probability, uint8 (count,); every operation here must round alike everywhere."""
    c = c.astype(np.float32) * np.float32(_STEPS)
    p = a * c[2]
    p += c[1]
    for number, q in enumerate(predictors):
        p += q * c[4 + 2 * number]
    p *= a
    p += c[0]
    for number, q in enumerate(predictors):
        p += q * c[3 + 2 * number]
    np.clip(p, 0, _STEPS - 1, out=p)
    levels: NDArray[np.uint8] = _level_table().take(p.astype(np.uint16))
    return levels


def _code_levels(coder: constriction.stream.stack.AnsCoder, bits: NDArray[np.bool_], levels: NDArray[np.uint8]) -> None:
    """Encode bits, the last level first, for decoding turns the order round."""
    order, ends = _sort(levels)
    by_level = bits[order]
    for level in reversed(range(LEVELS)):
        run = by_level[ends[level] : ends[level + 1]]
        symbols = np.packbits(run, bitorder="little").astype(np.int32)
        whole, rest = divmod(run.size, 8)
        if rest:
            coder.encode_reverse(symbols[whole:], _model(level, rest))
        if whole:
            coder.encode_reverse(symbols[:whole], _model(level, 8))


def _decode_levels(
    coder: constriction.stream.stack.AnsCoder, bits: NDArray[np.bool_], levels: NDArray[np.uint8]
) -> None:
    """Fill `bits`."""
    order, ends = _sort(levels)
    by_level = np.empty_like(bits)
    for level in range(LEVELS):
        run = by_level[ends[level] : ends[level + 1]]
        whole, rest = divmod(run.size, 8)
        if whole:
            symbols = coder.decode(_model(level, 8), whole).astype(np.uint8)
            run[: 8 * whole] = np.unpackbits(symbols, bitorder="little")
        if rest:
            symbol = coder.decode(_model(level, rest), 1).astype(np.uint8)
            run[8 * whole :] = np.unpackbits(symbol, count=rest, bitorder="little")
    bits[order] = by_level


def _sort(levels: NDArray[np.uint8]) -> tuple[NDArray[np.intp], list[int]]:
    """The order that sorts `levels`, and where each level's elements start and the last one's end."""
    ends = np.concatenate([[0], np.cumsum(np.bincount(levels, minlength=LEVELS))])
    return np.argsort(levels, kind="stable"), ends.tolist()


def _probability(x: float) -> float:
    """Probability at x in [0, 1] along the levels; their distances shrink towards 0 and 1 as the coding loss asks."""
    return x * x * (3 - 2 * x)


@cache
def _level_table() -> NDArray[np.uint8]:
    """The level of each step of probability: the last one that starts at or before the step's middle."""
    starts = [_probability(level / LEVELS) for level in range(LEVELS)]
    middles = (np.arange(_STEPS) + 0.5) / _STEPS
    table: NDArray[np.uint8] = (np.searchsorted(starts, middles, side="right") - 1).astype(np.uint8)
    return table


@cache
def _model(level: int, width: int) -> object:
    """The distribution of `width` independent bits of a level, the first one lowest."""
    one = _probability((level + 0.5) / LEVELS)
    probabilities = np.ones(1)
    for _ in range(width):
        probabilities = np.concatenate([probabilities * (1 - one), probabilities * one])
    return categorical(probabilities)
