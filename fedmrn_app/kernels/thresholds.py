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
from numpy.typing import NDArray

from fedmrn_app.kernels import words
from fedmrn_app.kernels.mask_coder import FLOATS, KNOWN_FLOATS, compile_loop
from fedmrn_app.layout import Float32Array


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of a mask's bits, in the order of the bits.

    Attributes:
        size: float32 in [0, 1].
        sign: float32 of -1 and 1, the threshold's own.
        trend: float32 in [-1, 1], where the weight has gone so far, times the sign.
        flipped: bool, where the threshold has not the noise's sign; None where all have.
    """

    size: Float32Array
    sign: Float32Array
    trend: Float32Array
    flipped: NDArray[np.bool_] | None


def uniforms(key: int, count: int) -> Float32Array:
    """The uniforms 0 to `count` of a key, float32 (count,)."""
    v = np.empty(count, np.float32)
    _fill()(*map(np.uint32, words.split_key(key)), v)
    return v


def measure(n: Float32Array, key: int, scale: np.float32, signed: bool, trend: Float32Array) -> Thresholds:
    """The thresholds v n or, signed, (2 v - 1) n, with the uniforms v of a key, times the scale."""
    size, sign, pull = np.empty_like(n), np.empty_like(n), np.empty_like(n)
    flipped = np.empty(n.size if signed else 0, np.bool_)
    low, high = map(np.uint32, words.split_key(key))
    _measure(signed)(n, low, high, scale, trend, size, sign, pull, flipped)
    return Thresholds(size, sign, pull, flipped if signed else None)


def measure_plain(n: Float32Array, key: int, scale: np.float32, signed: bool, trend: Float32Array) -> Thresholds:
    """The same by NumPy's operations."""
    v = words.uniforms(key, n.size)
    sign = np.copysign(np.float32(1), n)
    flipped = None
    if signed:
        v = v + v - np.float32(1)
        flipped = v < 0
        sign = np.where(flipped, -sign, sign)
    size = np.minimum(np.abs(n) * scale * np.abs(v), np.float32(1))
    return Thresholds(size, sign, trend * sign, flipped)


@cache
def _uniform() -> Callable[..., Any]:
    multiply_first, multiply_second = (np.uint32(m) for m in words.MULTIPLIERS)
    u32, unit = np.uint32, np.float32(2.0**-24)

    @numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
    def uniform(i: Any, low: Any, high: Any) -> Any:
        x = u32(u32(i) + low)
        x = u32((x ^ (x >> u32(16))) * multiply_first) ^ high
        x = u32((x ^ (x >> u32(15))) * multiply_second)
        return np.float32(np.int32((x ^ (x >> u32(16))) >> u32(8))) * unit

    compiled: Callable[..., Any] = uniform
    return compiled


@cache
def _fill() -> Callable[..., Any]:
    uniform = _uniform()

    def fill(low: Any, high: Any, v: Any) -> None:
        for i in range(v.size):
            v[i] = uniform(i, low, high)

    return compile_loop(types.void(types.uint32, types.uint32, FLOATS), fill)


@cache
def _measure(signed: bool) -> Callable[..., Any]:
    uniform, one, zero = _uniform(), np.float32(1), np.float32(0)

    def measure(
        n: Any, low: Any, high: Any, scale: Any, trend: Any, size: Any, sign: Any, pull: Any, flipped: Any
    ) -> None:
        for i in range(n.size):
            v = uniform(i, low, high)
            s = one if n[i] > zero else -one
            if signed:
                v = v + v - one
                against = v < zero
                flipped[i] = against
                s = -s if against else s
            x = abs(n[i]) * scale * abs(v)
            size[i] = x if x < one else one
            sign[i] = s
            pull[i] = trend[i] * s

    flags = types.Array(types.boolean, 1, "C")
    word, number = types.uint32, types.float32
    signature = types.void(KNOWN_FLOATS, word, word, number, KNOWN_FLOATS, FLOATS, FLOATS, FLOATS, flags)
    return compile_loop(signature, measure)
