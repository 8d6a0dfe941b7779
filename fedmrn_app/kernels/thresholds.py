"""The uniforms of masks' last draw, and how far the thresholds are that follow from them: compiled loops.

What they equal bit for bit: `uniforms` in `words.py`, and `measure_plain` here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types

from fedmrn_app.kernels import counter_rng as words
from fedmrn_app.kernels.compiled import FLOATS, KNOWN_FLOATS, compile_loop
from fedmrn_app.kernels.mask_rans_plain import Evidence
from fedmrn_app.layout import Float32Array


def uniforms(key: int, count: int) -> Float32Array:
    """The uniforms 0 to `count` of a key, float32 (count,)."""
    v = np.empty(count, np.float32)
    _fill()(*map(np.uint32, words.split_key(key)), v)
    return v


_U32, _UNIT = np.uint32, np.float32(2.0**-24)
_FIRST, _SECOND = (np.uint32(m) for m in words.MULTIPLIERS)


@dataclass(frozen=True)
class Rows:
    """Where rows of a vector start: the first one at `start`, the next `stride` elements on."""

    start: int
    stride: int


def measure(n: Float32Array, rows: Rows, key: int, scale: np.float32, signed: bool, trend: Float32Array) -> Evidence:
    """The thresholds v n or, signed, (2 v - 1) n of some rows of a vector.

    Args:
        n: the noise of the rows, float32 (rows, width).
        rows: where in the vector they are.
        key: of the uniforms v.
        scale: what sizes are multiplied by, to be at most 1.
        signed: which of the two.
        trend: where each weight of the whole vector has gone so far, float32 (d,) in [-1, 1].

    Returns:
        Sizes; the thresholds' own signs; the trend times the sign; turned bits where the threshold has not the noise's
        sign, None where all have. Each of shape (rows, width).
    """
    size, sign, pull = np.empty_like(n), np.empty_like(n), np.empty_like(n)
    flipped = np.empty(n.shape if signed else (0, 0), np.bool_)
    low, high = words.split_key(key)
    first = np.uint32((low + rows.start) & 0xFFFFFFFF)
    loop = _measure(signed)
    loop(n, first, np.uint32(high), rows.stride, scale, trend[rows.start :], size, sign, pull, flipped)
    return Evidence(size, sign, pull, flipped if signed else None)


def measure_plain(
    n: Float32Array, rows: Rows, key: int, scale: np.float32, signed: bool, trend: Float32Array
) -> Evidence:
    """The same by NumPy's operations."""
    at = rows.start + rows.stride * np.arange(len(n))[:, None] + np.arange(n.shape[1])
    v = words.uniforms(key, int(at.max()) + 1)[at]
    sign = np.copysign(np.float32(1), n)
    flipped = None
    if signed:
        v = v + v - np.float32(1)
        flipped = v < 0
        sign = np.where(flipped, -sign, sign)
    size = np.minimum(np.abs(n) * scale * np.abs(v), np.float32(1))
    return Evidence(size, sign, trend[at] * sign, flipped)


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def uniform(i: Any, low: Any, high: Any) -> Any:
    """The number of one index, of the two words of a key: `unit_floats(random_words(key))` in `words.py`."""
    x = _U32(_U32(i) + low)
    x = _U32((x ^ (x >> _U32(16))) * _FIRST) ^ high
    x = _U32((x ^ (x >> _U32(15))) * _SECOND)
    return np.float32(np.int32((x ^ (x >> _U32(16))) >> _U32(8))) * _UNIT


@cache
def _fill() -> Callable[..., Any]:
    def fill(low: Any, high: Any, v: Any) -> None:
        for i in range(v.size):
            v[i] = uniform(i, low, high)

    return compile_loop(types.void(types.uint32, types.uint32, FLOATS), fill)


@cache
def _measure(signed: bool) -> Callable[..., Any]:
    one, zero = np.float32(1), np.float32(0)

    def measure(
        n: Any, low: Any, high: Any, stride: Any, scale: Any, trend: Any, size: Any, sign: Any, pull: Any, flipped: Any
    ) -> None:
        for row in range(n.shape[0]):
            first = np.uint32(low + np.uint32(row * stride))
            noise, trends = n[row], trend[row * stride : row * stride + n.shape[1]]
            sizes, signs, pulls = size[row], sign[row], pull[row]
            for i in range(noise.size):
                v = uniform(i, first, high)
                s = one if noise[i] > zero else -one
                if signed:
                    v = v + v - one
                    against = v < zero
                    flipped[row, i] = against
                    s = -s if against else s
                x = abs(noise[i]) * scale * abs(v)
                sizes[i] = x if x < one else one
                signs[i] = s
                pulls[i] = trends[i] * s

    known, made = types.Array(types.float32, 2, "C", readonly=True), types.Array(types.float32, 2, "C")
    flags, word, number = types.Array(types.boolean, 2, "C"), types.uint32, types.float32
    signature = types.void(known, word, word, types.int64, number, KNOWN_FLOATS, made, made, made, flags)
    return compile_loop(signature, measure)
