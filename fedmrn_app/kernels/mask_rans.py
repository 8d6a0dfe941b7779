"""Bits by asymmetric numeral systems: `mask_rans_plain.py` compiled, the same numbers operation by operation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from fedmrn_app.kernels.compiled import FLOATS, compile_loop
from fedmrn_app.kernels.mask_rans_plain import GRAIN, LOWEST, STEPS, Evidence, States, Words
from fedmrn_app.layout import Float32Array

_WIDEST = 8  # lanes of long masks


def lanes_of(count: int) -> int:
    """How many lanes masks of `count` bits have: more are faster, and take up to four bytes each."""
    return _WIDEST if count >= 1 << 17 else 1


def count_runs(evidence: Evidence, bits: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """As the plain one."""
    runs = len(evidence.size)
    counts, effects = np.empty(runs, np.int64), np.empty(runs, np.int64)
    sign = evidence.size if evidence.sign is None else evidence.sign
    _count_runs()(evidence.size, sign, evidence.sign is not None, bits, counts, effects)
    return counts, effects


def find_shares(
    evidence: Evidence, c: Float32Array, bend: np.float32, push: Float32Array, density: Float32Array
) -> NDArray[np.uint16]:
    """As the plain one."""
    size = evidence.size
    shares = np.empty(size.size, np.uint16)
    sign = size if evidence.sign is None else evidence.sign
    trend = size if evidence.trend is None else evidence.trend
    known = (evidence.sign is not None, evidence.trend is not None)
    _find_shares()(size, sign, trend, *known, c, bend, push, density, shares)
    return shares


def encode(bits: NDArray[np.uint8], shares: NDArray[np.uint16], states: States, words: Words, end: int) -> int:
    """As the plain one."""
    if not (bits.size == shares.size <= end <= words.size):
        raise ValueError(f"no room for {bits.size} bits with {shares.size} shares before place {end} of {words.size}")
    return int(_encode(states.size)(bits, shares, states, words, end))


def decode(shares: NDArray[np.uint16], states: States, words: Words, place: int, out: NDArray[np.uint8]) -> int:
    """As the plain one."""
    if shares.size != out.size or place < 0:
        raise ValueError(f"{shares.size} shares for {out.size} bits from place {place} on")
    return int(_decode(states.size)(shares, states, words, place, out))


_MATRIX = types.Array(types.float32, 2, "C", readonly=True)
_OCTETS = types.Array(types.uint8, 1, "C")
_SHARES, _WORDS = types.Array(types.uint16, 1, "C"), types.Array(types.uint16, 1, "C")
_STATES = types.Array(types.uint32, 1, "C")
_TOTALS = types.Array(types.int64, 1, "C")


@cache
def _count_runs() -> Callable[..., Any]:
    grain = np.float32(GRAIN)

    def count(size: Any, sign: Any, signed: Any, bits: Any, counts: Any, effects: Any) -> None:
        for run in range(size.shape[0]):
            total, effect = np.int64(0), np.int64(0)
            for i in range(size.shape[1]):
                bit = np.int32(bits[run, i])
                moved = np.int32(size[run, i] * grain) * bit
                effect += moved * np.int32(sign[run, i]) if signed else moved
                total += bit
            counts[run] = total
            effects[run] = effect

    bits = types.Array(types.uint8, 2, "C")
    return compile_loop(types.void(_MATRIX, _MATRIX, types.boolean, bits, _TOTALS, _TOTALS), count)


@cache
def _find_shares() -> Callable[..., Any]:
    one, half, zero, most = np.float32(1), np.float32(0.5), np.float32(0), np.float32(STEPS - 1)

    def find(
        size: Any, sign: Any, trend: Any, signed: Any, trending: Any, c: Any, bend: Any, push: Any, density: Any,
        shares: Any,
    ) -> None:  # fmt: skip
        width = size.shape[1]
        c0 = c[0] + half
        bend1 = one + bend
        c1, c2, c3, c4, c5, c6, c7, c8 = c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8]
        for run in range(size.shape[0]):
            pushed, dense = push[run], density[run]
            dense7, dense8 = dense * c7, dense * c8
            out = shares[run * width : (run + 1) * width]
            sizes, signs, trends = size[run], sign[run], trend[run]
            for i in range(width):
                a = sizes[i] * bend1 / (sizes[i] * bend + one)
                t = trends[i] if trending else zero
                q = pushed * signs[i] if signed else pushed
                p = a * c2 + c1 + t * c4 + q * c6 + dense8
                p = p * a + c0 + t * c3 + q * c5 + dense7
                p = p if p > one else one
                p = p if p < most else most
                out[i] = np.uint16(np.int32(p))

    flag, number = types.boolean, types.float32
    signature = types.void(_MATRIX, _MATRIX, _MATRIX, flag, flag, FLOATS, number, FLOATS, FLOATS, _SHARES)
    return compile_loop(signature, find)


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
    """Return the bit, the next state, and whether the word has been used.

    Both sides of each choice are worked out before it, so that no branch comes of it: branches would be mistaken.
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
    u64 = np.uint64  # of places and counts: signed ones would be looked at for counting from the end

    def decode(shares: Any, states: Any, words: Any, place: Any, out: Any) -> Any:
        i, size, count, width = u64(0), u64(words.size), u64(out.size), u64(lanes)
        place = u64(place)
        if lanes == 8:
            x0, x1, x2, x3, x4, x5, x6, x7 = (  # as variables they stay in registers
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
        while i < count:  # all words are read: what needs one more fails
            out[i], states[i % width], missing = _step(states[i % width], shares[i], u32(0))
            if missing:
                return np.int64(-1)
            i += u64(1)
        return np.int64(place)

    return compile_loop(types.int64(_SHARES, _STATES, _WORDS, types.int64, _OCTETS), decode)
