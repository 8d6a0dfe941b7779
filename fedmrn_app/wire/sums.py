"""Sums over long vectors, in float64, in parts that stay in cache."""

from __future__ import annotations

import numpy as np

from fedmrn_app.layout import Float32Array

_PART = 1 << 17  # elements that are widened to float64 at a time


def square_sum(x: Float32Array) -> float:
    """Return the sum of the squares of a vector (d,)."""
    if x.size <= _PART:
        return float(np.square(x, dtype=np.float64).sum())
    return sum(float(np.square(x[start : start + _PART], dtype=np.float64).sum()) for start in range(0, x.size, _PART))


def inner_product(x: Float32Array, y: Float32Array) -> float:
    """Return the inner product of two vectors (d,)."""
    parts = (slice(start, start + _PART) for start in range(0, x.size, _PART))
    return sum(float(np.multiply(x[part], y[part], dtype=np.float64).sum()) for part in parts)
