"""The uniforms of a mask's last draw, and the side information of the thresholds that they set: compiled loops.

The uniforms equal `unit_floats` of `random_words` in `counter_rng.py` bit for bit.
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

from fedmrn_app.kernels.compiled import (
    FLOAT_ROWS,
    FLOATS,
    READ_ONLY_FLOAT_ROWS,
    READ_ONLY_FLOATS,
    compile_loop,
    compiled_at_first_call,
)
from fedmrn_app.kernels.counter_rng import MULTIPLIERS, first_word
from fedmrn_app.kernels.mask_rans import Evidence
from fedmrn_app.layout import Float32Array

_U32, _UNIT = np.uint32, np.float32(2.0**-24)
_FIRST, _SECOND = (np.uint32(m) for m in MULTIPLIERS)


def uniforms(key: int, count: int) -> Float32Array:
    """Return the uniforms 0 to `count` of a 64-bit key, float32 (count,) in [0, 1)."""
    v = np.empty(count, np.float32)
    _fill(*map(np.uint32, first_word(key)), v)
    return v


def draw(key: int, u: Float32Array, n: Float32Array, signed: bool, first: int, mask: NDArray[np.bool_]) -> None:
    """Draw a part of a stochastic mask: set its bits where a uniform is less than u / n, or (u + n) / 2n if signed.

    Args:
        key: the 64-bit key of the uniforms.
        u: the update, float32 (k,).
        n: its noise, float32 (k,), never zero.
        signed: whether the mask is signed.
        first: the uniform that belongs to the first element.
        mask: the bits, bool (k,).
    """
    _draw(*map(np.uint32, first_word(key, first)), u, n, signed, mask)


@dataclass(frozen=True)
class Rows:
    """The place of rows in a vector: the first starts at `start`, and each next one `stride` elements later."""

    start: int
    stride: int


@dataclass(frozen=True)
class Thresholds:
    """The thresholds v n of a binary mask, or (2 v - 1) n of a signed one, for a whole vector.

    Attributes:
        key: the 64-bit key of the uniforms v.
        scale: the factor that maps the thresholds' magnitudes to sizes; sizes are capped at 1.
        signed: whether the mask is signed.
    """

    key: int
    scale: np.float32
    signed: bool


def measure(
    thresholds: Thresholds, n: Float32Array, rows: Rows, trend: Float32Array, estimate: Float32Array | None = None
) -> Evidence:
    """Return the side information of the thresholds of some rows of a vector.

    A size is the distance of a threshold from the estimated update, and a sign is the direction from the estimate to
    the threshold. Few updates lie beyond a threshold that is far from the estimate.

    Args:
        thresholds: those of the whole vector.
        n: the noise of the rows, float32 (rows, width).
        rows: the place of the rows in the vector.
        trend: the direction in which each weight of the rows has moved so far, float32 (rows, width) in [-1, 1].
        estimate: the estimated update of the rows times the scale, float32 (rows, width); None for zeros.

    Returns:
        The sizes, the signs, the trend times the sign, and the bits to invert: those whose sign is not the noise's.
        Binary masks without an estimate have none, and None stands for them. Each has the shape (rows, width).
    """
    size, sign, drift = np.empty_like(n), np.empty_like(n), np.empty_like(n)
    inverts = thresholds.signed or estimate is not None
    inverted = np.empty(n.shape if inverts else (0, 0), np.bool_)
    low, high = map(np.uint32, first_word(thresholds.key, rows.start))
    loop = _measure(thresholds.signed, estimate is not None)
    expected = n if estimate is None else estimate
    loop(n, low, high, rows.stride, thresholds.scale, trend, expected, size, sign, drift, inverted)
    return Evidence(size, sign, drift, inverted if inverts else None)


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def uniform(i: Any, low: Any, high: Any) -> Any:
    """Return the uniform of one element, from `first_word` of a key: `unit_floats(random_words(key))` compiled."""
    x = _U32(_U32(i) + low)
    x = _U32((x ^ (x >> _U32(16))) * _FIRST) ^ high
    x = _U32((x ^ (x >> _U32(15))) * _SECOND)
    return np.float32(np.int32((x ^ (x >> _U32(16))) >> _U32(8))) * _UNIT


@compiled_at_first_call(types.void(types.uint32, types.uint32, FLOATS))
def _fill(low: Any, high: Any, v: Any) -> None:
    for i in range(v.size):
        v[i] = uniform(i, low, high)


@compiled_at_first_call(
    types.void(
        types.uint32,
        types.uint32,
        READ_ONLY_FLOATS,
        READ_ONLY_FLOATS,
        types.boolean,
        types.Array(types.boolean, 1, "C"),
    )
)
def _draw(low: Any, high: Any, u: Any, n: Any, signed: Any, mask: Any) -> None:
    half = np.float32(0.5)
    for i in range(mask.size):
        ratio = u[i] / n[i]
        p = half * ratio + half if signed else ratio
        mask[i] = uniform(i, low, high) < p  # as with a probability that is cut to [0, 1]


@cache
def _measure(signed: bool, estimated: bool) -> Callable[..., Any]:
    one, zero = np.float32(1), np.float32(0)

    def measure(
        n: Any, low: Any, high: Any, stride: Any, scale: Any, trend: Any, estimate: Any,
        size: Any, sign: Any, drift: Any, inverted: Any,
    ) -> None:  # fmt: skip
        for row in range(n.shape[0]):
            first = np.uint32(low + np.uint32(row * stride))
            noise, trends = n[row], trend[row]
            sizes, signs, drifts, expected = size[row], sign[row], drift[row], estimate[row]
            for i in range(noise.size):
                v = uniform(i, first, high)
                s = one if noise[i] > zero else -one
                against = False
                if signed:
                    v = v + v - one
                    against = v < zero
                    s = -s if against else s
                x = abs(noise[i]) * scale * abs(v)
                if estimated:
                    x = x - s * expected[i]
                    beyond = x < zero
                    s = -s if beyond else s
                    x = abs(x)
                    against = against ^ beyond
                if signed or estimated:
                    inverted[row, i] = against
                sizes[i] = x if x < one else one
                signs[i] = s
                drifts[i] = trends[i] * s

    flags, word, number = types.Array(types.boolean, 2, "C"), types.uint32, types.float32
    outputs = (FLOAT_ROWS, FLOAT_ROWS, FLOAT_ROWS, flags)
    inputs = (word, word, types.int64, number, READ_ONLY_FLOAT_ROWS, READ_ONLY_FLOAT_ROWS)
    signature = types.void(READ_ONLY_FLOAT_ROWS, *inputs, *outputs)
    return compile_loop(signature, measure)
