"""Sums of outer products, the same on every machine: a compiled loop."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from fedmrn_app.kernels.compiled import FLOAT_ROWS, READ_ONLY_FLOAT_ROWS, compiled_at_first_call
from fedmrn_app.layout import Float32Array

_COLUMNS = 512  # floats of a row that are made at a time


def product(
    left: Float32Array, right: Float32Array, out: Float32Array | None = None, scales: tuple[float, float] = (1.0, 1.0)
) -> Float32Array:
    """Return the sum of the outer products of left (r, n) and right (r, m) vectors, float32 (n, m).

    One product is added after the other, in float32. Libraries of linear algebra choose an order of their own.

    Args:
        left: float32 (r, n).
        right: float32 (r, m).
        out: where to write the sum, float32 (n, m), contiguous; None for a new array.
        scales: what the sum is multiplied by, one after the other.
    """
    found = np.empty((left.shape[1], right.shape[1]), np.float32) if out is None else out
    first, second = map(np.float32, scales)
    _add(np.ascontiguousarray(left.T), np.ascontiguousarray(right), found, first, second)
    return found


@compiled_at_first_call(
    types.void(READ_ONLY_FLOAT_ROWS, READ_ONLY_FLOAT_ROWS, FLOAT_ROWS, types.float32, types.float32)
)
def _add(factors: Any, right: Any, found: Any, first: Any, second: Any) -> None:
    rank, width = right.shape
    for start in range(0, width, _COLUMNS):  # parts of the right vectors stay in the cache
        columns = slice(start, min(start + _COLUMNS, width))
        for i in range(found.shape[0]):
            row, factor = found[i, columns], factors[i]
            row[:] = 0
            k = 0
            while k + 4 <= rank:  # a row is read and written once for four products, which are added in their order
                a, b, c, d = factor[k], factor[k + 1], factor[k + 2], factor[k + 3]
                p, q, r, s = right[k, columns], right[k + 1, columns], right[k + 2, columns], right[k + 3, columns]
                for j in range(row.size):
                    row[j] = row[j] + a * p[j] + b * q[j] + c * r[j] + d * s[j]
                k += 4
            while k < rank:
                a, p = factor[k], right[k, columns]
                for j in range(row.size):
                    row[j] += a * p[j]
                k += 1
            for j in range(row.size):
                row[j] = row[j] * first * second
