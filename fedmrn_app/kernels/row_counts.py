"""What an estimate of the bits of quantized rows needs: a compiled loop over memory.

The order of sums is left open, which only an estimate may do.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
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
    _count(np.ascontiguousarray(values), smallest, step, found)
    return RowCounts(*found)


def row_costs(
    values: Float32Array, smallest: float, step: float, price: float, level: float, octave: float, lost: float
) -> NDArray[np.float64]:
    """Return what each quantized row costs, by an estimate, in squared steps, float64 (k,): its error and its bits.

    Args:
        values: float32 (k, n).
        smallest: size up to which an element is zero, at most a step.
        step: step of the quantizer, positive.
        price: price of a bit, as a share of the squared step.
        level: bits of a level of 1, its sign included.
        octave: bits of each octave above.
        lost: squared error of an element that is not zero, in squared steps.
    """
    costs = np.empty(len(values))
    _cost(np.ascontiguousarray(values), smallest, step, price, level, octave, lost, costs)
    return costs


def row_bits(values: Float32Array, smallest: float, step: float) -> float:
    """Return the entropy of quantized rows in bits: of which elements are zero, of signs, and of geometric levels.

    Args:
        values: float32 (k, n).
        smallest: size up to which an element is zero, at most a step.
        step: step of the quantizer, positive.
    """
    return float(_bits(np.ascontiguousarray(values), smallest, step))


@numba.njit(error_model="numpy", fastmath={"reassoc", "nsz"})  # type: ignore[untyped-decorator]
def _sums(row: Any, smallest: Any, per_step: Any) -> Any:
    """Return the sums of `RowCounts` over a row; sums and products are taken in parallel."""
    all_kept, all_sizes, all_lost, octaves = 0.0, 0.0, 0.0, 0.0
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
        all_kept += kept
        all_sizes += sizes
        all_lost += lost
        if ratios > 1:
            octaves += math.log2(ratios)
    return all_kept, all_sizes, all_lost, octaves


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _entropy(p: Any) -> Any:
    """Return the entropy of a bit that is set with a probability, in bits."""
    p = min(max(p, 1e-9), 1 - 1e-9)
    return -(p * math.log2(p) + (1 - p) * math.log2(1 - p))


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _per_step(step: Any) -> Any:
    return np.float32(min(1 / step, _MOST_PER_STEP))


@compiled_at_first_call(
    types.void(READ_ONLY_FLOAT_ROWS, types.float32, types.float64, types.Array(types.float64, 2, "C"))
)
def _count(values: Any, smallest: Any, step: Any, found: Any) -> None:
    for i in range(values.shape[0]):
        found[0, i], found[1, i], found[2, i], found[3, i] = _sums(values[i], smallest, _per_step(step))


@compiled_at_first_call(
    types.void(READ_ONLY_FLOAT_ROWS, types.float32, *[types.float64] * 5, types.Array(types.float64, 1, "C"))
)
def _cost(
    values: Any, smallest: Any, step: Any, price: Any, level: Any, octave: Any, noise: Any, costs: Any
) -> None:  # fmt: skip
    width = values.shape[1]
    for i in range(values.shape[0]):
        kept, _, lost, octaves = _sums(values[i], smallest, _per_step(step))
        bits = _entropy(kept / width) * width + level * kept + octave * octaves
        costs[i] = lost / step**2 + noise * kept + price * bits


@compiled_at_first_call(types.float64(READ_ONLY_FLOAT_ROWS, types.float32, types.float64))
def _bits(values: Any, smallest: Any, step: Any) -> Any:
    width, found = values.shape[1], 0.0
    for i in range(values.shape[0]):
        kept, sizes, _, _ = _sums(values[i], smallest, _per_step(step))
        mean = max(sizes / step / max(kept, 1.0), 1.0)
        found += _entropy(kept / width) * width + kept * (1 + mean * _entropy(1 / mean))
    return found
