"""Coding of bits with a probability each, by asymmetric numeral systems: compiled loops.

    bit i of a part  -->  lane i mod L, a state in [2^16, 2^32)  -->  16-bit words, one sequence for all L lanes
                                   ^
                  share of the bit: P(bit = 1) in steps of 2^-12, from 1 to 4095

Duda 2013, "Asymmetric numeral systems", the variant with ranges (rANS); Giesen 2014, "Interleaved entropy coders". The
last bit is encoded first, so that the first one is decoded first.

Both sides compute the shares from side information. Only integer operations and +, -, *, / of float32, which IEEE 754
rounds exactly, lead to the shares, so every machine computes the same ones.

`tests/plain/mask_rans.py` does the same in plain Python, with the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from fedmrn_app.kernels.compiled import FLOATS, READ_ONLY_FLOAT_ROWS, compile_loop, compiled_at_first_call
from fedmrn_app.layout import Float32Array

STEPS = 1 << 12  # steps of a probability
LOWEST = 1 << 16  # the least state of a lane, and its state before the first and after the last bit
GRAIN = 128  # steps of a size, where sizes are summed

Words = NDArray[np.uint16]
States = NDArray[np.uint32]

_MAX_LANES = 8

_OCTETS = types.Array(types.uint8, 1, "C")
_OCTET_ROWS = types.Array(types.uint8, 2, "C")
_SHARES, _WORDS = types.Array(types.uint16, 1, "C"), types.Array(types.uint16, 1, "C")
_STATES = types.Array(types.uint32, 1, "C")
_TOTALS = types.Array(types.int64, 1, "C")

_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_GRAIN, _MAX_SHARE = np.float32(GRAIN), np.float32(STEPS - 1)


@dataclass(frozen=True)
class Evidence:
    """The side information of bits that are coded together, a block of runs; each array has the shape (runs, width).

    Attributes:
        size: float32 in [0, 1].
        sign: float32 of -1 and 1, the direction in which a set bit moves its weight; None if always the same.
        trend: float32 in [-1, 1], the direction in which the weight is expected to move times the sign, or None.
        flipped: bool, the bits that are inverted before they are coded, or None; other fields refer to inverted bits.
    """

    size: Float32Array
    sign: Float32Array | None = None
    trend: Float32Array | None = None
    flipped: NDArray[np.bool_] | None = None


def lanes_of(count: int) -> int:
    """Return the number of lanes of a mask of `count` bits: more lanes are faster and take four bytes each."""
    return _MAX_LANES if count >= 1 << 17 else 1


def count_runs(evidence: Evidence, bits: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of set bits of each run, and the sum of their sizes times signs in steps; both int64 (runs,).

    Args:
        evidence: the side information of the bits.
        bits: the bits as they are coded, 0 and 1, (runs, width).
    """
    runs = len(evidence.size)
    counts, effects = np.empty(runs, np.int64), np.empty(runs, np.int64)
    sign = evidence.size if evidence.sign is None else evidence.sign
    _count_runs(evidence.size, sign, evidence.sign is not None, bits, counts, effects)
    return counts, effects


def find_shares(
    evidence: Evidence, c: Float32Array, curvature: np.float32, effect: Float32Array, density: Float32Array
) -> NDArray[np.uint16]:
    """Return the shares of bits, uint16 (runs * width,).

    A share is linear in 1, a and a^2, where a = (1 + k) s / (1 + k s) with size s and curvature k, and in q and a q for
    each predictor q: the trend, the effect times the sign, and the density.

    Args:
        evidence: the side information of the bits.
        c: float32 (9,), the coefficients of 1, a, a^2 and then of q and a q for each predictor, times `STEPS`.
        curvature: k, at least 0.
        effect: float32 (runs,), the mean of size * sign * bit of each run so far.
        density: float32 (runs,), the mean of the bits of each run's row so far, less that of the tensor.
    """
    size = evidence.size
    shares = np.empty(size.size, np.uint16)
    sign = size if evidence.sign is None else evidence.sign
    trend = size if evidence.trend is None else evidence.trend
    has_sign, has_trend = evidence.sign is not None, evidence.trend is not None
    _find_shares(size, sign, trend, has_sign, has_trend, c, curvature, effect, density, shares)
    return shares


def encode(bits: NDArray[np.uint8], shares: NDArray[np.uint16], states: States, words: Words, end: int) -> int:
    """Encode bits (n,): write words before place `end`, update the states, and return the place of the first word.

    Raises:
        ValueError: the bits and shares differ in number, or the words before `end` may not be enough.
    """
    if not (bits.size == shares.size <= end <= words.size):
        raise ValueError(f"{bits.size} bits with {shares.size} shares do not fit before word {end} of {words.size}")
    return int(_encode(states.size)(bits, shares, states, words, end))


def decode(shares: NDArray[np.uint16], states: States, words: Words, place: int, out: NDArray[np.uint8]) -> int:
    """Decode bits into `out` (n,): read words from `place` on and update the states.

    Returns:
        The place of the next word, or -1 if the words end before the bits do.

    Raises:
        ValueError: the bits and shares differ in number, or the place is negative.
    """
    if shares.size != out.size or place < 0:
        raise ValueError(f"{shares.size} shares cannot decode {out.size} bits from word {place} on")
    return int(_decode(states.size)(shares, states, words, place, out))


@compiled_at_first_call(
    types.void(READ_ONLY_FLOAT_ROWS, READ_ONLY_FLOAT_ROWS, types.boolean, _OCTET_ROWS, _TOTALS, _TOTALS)
)
def _count_runs(size: Any, sign: Any, has_sign: Any, bits: Any, counts: Any, effects: Any) -> None:
    for run in range(size.shape[0]):
        total, effect = np.int64(0), np.int64(0)
        for i in range(size.shape[1]):
            bit = np.int32(bits[run, i])
            steps = np.int32(size[run, i] * _GRAIN) * bit
            effect += steps * np.int32(sign[run, i]) if has_sign else steps
            total += bit
        counts[run] = total
        effects[run] = effect


@compiled_at_first_call(
    types.void(
        READ_ONLY_FLOAT_ROWS, READ_ONLY_FLOAT_ROWS, READ_ONLY_FLOAT_ROWS, types.boolean, types.boolean,
        FLOATS, types.float32, FLOATS, FLOATS, _SHARES,
    )
)  # fmt: skip
def _find_shares(
    size: Any, sign: Any, trend: Any, has_sign: Any, has_trend: Any,
    c: Any, curvature: Any, effect: Any, density: Any, shares: Any,
) -> None:  # fmt: skip
    width = size.shape[1]
    c0 = c[0] + _HALF
    numerator = _ONE + curvature
    c1, c2, c3, c4, c5, c6, c7, c8 = c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8]
    for run in range(size.shape[0]):
        effect_of_run, density_of_run = effect[run], density[run]
        density7, density8 = density_of_run * c7, density_of_run * c8
        out = shares[run * width : (run + 1) * width]
        sizes, signs, trends = size[run], sign[run], trend[run]
        for i in range(width):
            a = sizes[i] * numerator / (sizes[i] * curvature + _ONE)
            t = trends[i] if has_trend else _ZERO
            q = effect_of_run * signs[i] if has_sign else effect_of_run
            p = a * c2 + c1 + t * c4 + q * c6 + density8
            p = p * a + c0 + t * c3 + q * c5 + density7
            p = p if p > _ONE else _ONE
            p = p if p < _MAX_SHARE else _MAX_SHARE
            out[i] = np.uint16(np.int32(p))


@cache
def _encode(lanes: int) -> Callable[..., Any]:
    u32, steps = np.uint32, np.uint32(STEPS)

    def encode(bits: Any, shares: Any, states: Any, words: Any, end: Any) -> Any:
        i = bits.size - 1
        while i >= 0:
            lane = i % lanes
            for j in range(lane + 1):
                x = states[lane - j]
                share, bit = u32(shares[i - j]), bits[i - j] != 0
                width = share if bit else steps - share
                start = u32(0) if bit else share
                if x >= u32(width << u32(20)):
                    end -= 1
                    words[end] = x & u32(0xFFFF)
                    x >>= u32(16)
                ratio = u32(x // width)
                states[lane - j] = u32(ratio * steps) + u32(x - ratio * width) + start
            i -= lane + 1
        return end

    return compile_loop(types.int64(_OCTETS, _SHARES, _STATES, _WORDS, types.int64), encode)


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _step(x: Any, share: Any, word: Any) -> Any:
    """Return the bit, the next state, and whether the word was used.

    Both outcomes of each choice are computed before it, so that LLVM emits no branches, which would be mispredicted.
    """
    share, word = np.uint32(share), np.uint32(word)
    rest, ratio = np.uint32(x & np.uint32(STEPS - 1)), np.uint32(x >> np.uint32(12))
    bit = rest < share
    if_set = np.uint32(np.uint32(share * ratio) + rest)
    if_not = np.uint32(x - np.uint32(share * np.uint32(ratio + np.uint32(1))))
    x = if_set if bit else if_not
    short = x < np.uint32(LOWEST)
    longer = np.uint32(np.uint32(x << np.uint32(16)) | word)
    x = longer if short else x
    return bit, x, np.uint64(short)


@cache
def _decode(lanes: int) -> Callable[..., Any]:
    u32 = np.uint32
    u64 = np.uint64  # for places and counts: with signed ones Numba checks for negative indices

    def decode(shares: Any, states: Any, words: Any, place: Any, out: Any) -> Any:
        i, size, count, width = u64(0), u64(words.size), u64(out.size), u64(lanes)
        place = u64(place)
        if lanes == 8:
            x0, x1, x2, x3, x4, x5, x6, x7 = (  # variables stay in registers
                states[0], states[1], states[2], states[3], states[4], states[5], states[6], states[7],
            )  # fmt: skip
            while i + u64(8) <= count and place + u64(8) <= size:  # no lane can run out of words
                out[i], x0, used = _step(x0, shares[i], words[place])
                place += used
                out[i + u64(1)], x1, used = _step(x1, shares[i + u64(1)], words[place])
                place += used
                out[i + u64(2)], x2, used = _step(x2, shares[i + u64(2)], words[place])
                place += used
                out[i + u64(3)], x3, used = _step(x3, shares[i + u64(3)], words[place])
                place += used
                out[i + u64(4)], x4, used = _step(x4, shares[i + u64(4)], words[place])
                place += used
                out[i + u64(5)], x5, used = _step(x5, shares[i + u64(5)], words[place])
                place += used
                out[i + u64(6)], x6, used = _step(x6, shares[i + u64(6)], words[place])
                place += used
                out[i + u64(7)], x7, used = _step(x7, shares[i + u64(7)], words[place])
                place += used
                i += u64(8)
            states[0], states[1], states[2], states[3] = x0, x1, x2, x3
            states[4], states[5], states[6], states[7] = x4, x5, x6, x7
        while i < count and place < size:
            out[i], states[i % width], used = _step(states[i % width], shares[i], words[place])
            place += used
            i += u64(1)
        while i < count:  # all words are read: a bit that needs another one fails
            out[i], states[i % width], missing = _step(states[i % width], shares[i], u32(0))
            if missing:
                return np.int64(-1)
            i += u64(1)
        return np.int64(place)

    return compile_loop(types.int64(_SHARES, _STATES, _WORDS, types.int64, _OCTETS), decode)
