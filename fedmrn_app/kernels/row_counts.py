"""What an estimate of the bits of quantized rows needs: a compiled loop over memory.

The order of sums is left open, which only an estimate may do.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from fedmrn_app.kernels.compiled import READ_ONLY_FLOAT_ROWS, compiled_at_first_call
from fedmrn_app.layout import Float32Array

_LEAST, _MOST = np.float32(1), np.float32(1 << 14)  # ratio of a size and a step; the latter is about the largest level
_MOST_PER_STEP = 1e38  # within float32
_BLOCK = 64  # elements whose ratios have a product below the largest float64


class RowCounts(NamedTuple):
    """Sums over each row of a matrix.

    Attributes:
        kept: number of elements above the smallest size, float64 (k,).
        sizes: sum of their sizes, float64 (k,).
        lost: sum of the squares of the others, float64 (k,).
        octaves: sum of the binary logarithms of sizes in steps, from 0 to 14, float64 (k,).
    """

    kept: NDArray[np.float64]
    sizes: NDArray[np.float64]
    lost: NDArray[np.float64]
    octaves: NDArray[np.float64]


def row_counts(values: Float32Array, smallest: float, step: float) -> RowCounts:
    """Return the sums over each row.

    Args:
        values: float32 (k, n).
        smallest: size up to which an element is lost, at most a step.
        step: step of the quantizer, positive.
    """
    found = np.zeros((4, len(values)))
    _count(np.ascontiguousarray(values), np.float32(smallest), np.float32(min(1 / step, _MOST_PER_STEP)), found)
    return RowCounts(*found)


@compiled_at_first_call(
    types.void(READ_ONLY_FLOAT_ROWS, types.float32, types.float32, types.Array(types.float64, 2, "C")),
    fastmath={"reassoc", "nsz"},  # so that sums and products are taken in parallel
)
def _count(values: Any, smallest: Any, per_step: Any, found: Any) -> None:
    for i in range(values.shape[0]):
        row = values[i]
        for start in range(0, row.size, _BLOCK):
            count = min(_BLOCK, row.size - start)
            block = row[start : start + count]
            kept, sizes, lost, ratios = np.int32(0), 0.0, 0.0, 1.0
            for j in range(count):
                size = abs(block[j])
                above = size > smallest
                kept += np.int32(above)
                lost += 0.0 if above else np.float64(size) * np.float64(size)
            for j in range(count if kept else 0):
                size = abs(block[j])
                sizes += np.float64(size) if size > smallest else 0.0
                ratio = size * per_step
                ratio = ratio if ratio > _LEAST else _LEAST  # Numba's max and min are slower
                ratio = ratio if ratio < _MOST else _MOST
                ratios *= np.float64(ratio)
            found[0, i] += kept
            found[1, i] += sizes
            found[2, i] += lost
            if ratios > 1:
                found[3, i] += math.log2(ratios)
