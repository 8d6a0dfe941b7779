"""Sums of outer products, the same on every machine: a compiled loop."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from fedmrn_app.kernels.compiled import FLOAT_ROWS, READ_ONLY_FLOAT_ROWS, compiled_at_first_call
from fedmrn_app.layout import Float32Array


def product(left: Float32Array, right: Float32Array, out: Float32Array | None = None) -> Float32Array:
    """Return the sum of the outer products of left (r, n) and right (r, m) vectors, float32 (n, m).

    One product is added after the other, in float32. Libraries of linear algebra choose an order of their own.

    Args:
        left: float32 (r, n).
        right: float32 (r, m).
        out: where to write the sum, float32 (n, m), contiguous; None for a new array.
    """
    found = np.empty((left.shape[1], right.shape[1]), np.float32) if out is None else out
    _add(np.ascontiguousarray(left), np.ascontiguousarray(right), found)
    return found


@compiled_at_first_call(types.void(READ_ONLY_FLOAT_ROWS, READ_ONLY_FLOAT_ROWS, FLOAT_ROWS))
def _add(left: Any, right: Any, found: Any) -> None:
    for i in range(found.shape[0]):
        row = found[i]  # stays in the cache while all products are added
        row[:] = 0
        for k in range(left.shape[0]):
            a, b = left[k, i], right[k]
            for j in range(row.size):
                row[j] += a * b[j]
