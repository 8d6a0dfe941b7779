"""Sums over long vectors, in float64, in parts that stay in cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array, blocks

_PART = 1 << 17  # elements that are widened to float64 at a time


def square_sum(x: Float32Array) -> float:
    """Return the sum of the squares of a vector (d,)."""
    return sum((float(np.square(x[part], dtype=np.float64).sum()) for part in blocks(x.size, _PART)), 0.0)


def inner_product(x: Float32Array, y: Float32Array) -> float:
    """Return the inner product of two vectors (d,)."""
    products = (np.multiply(x[part], y[part], dtype=np.float64) for part in blocks(x.size, _PART))
    return sum((float(part.sum()) for part in products), 0.0)


def pairwise_square_sum(values: Callable[[slice], NDArray[np.float64]], count: int) -> float:
    """Return `np.square(x).sum()` of a vector, float64 (count,), bit for bit, without a copy of the whole vector.

    Args:
        values: returns a part of the vector.
        count: number of elements.
    """

    def total(start: int, count: int) -> float:
        if count <= _PART:
            return float(np.square(values(slice(start, start + count))).sum())
        half = count // 2 // 8 * 8  # where NumPy's pairwise summation splits a sum
        return total(start, half) + total(start + half, count - half)

    return total(0, count)
