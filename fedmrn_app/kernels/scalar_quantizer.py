"""Levels of a scalar quantizer, and their centroids: compiled loops over memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from fedmrn_app.kernels.compiled import FLOATS, READ_ONLY_FLOATS, compiled_at_first_call
from fedmrn_app.layout import Float32Array

_LEVELS, _READ_ONLY_LEVELS = types.Array(types.uint8, 1, "C"), types.Array(types.uint8, 1, "C", readonly=True)
_PRODUCTS = types.Array(types.float64, 1, "C")


def reached_boundaries(
    y: Float32Array, factor: np.float32, boundaries: Float32Array, centroids: Float32Array
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Return how many boundaries each element times a factor reaches, and its product with that level's centroid.

    Args:
        y: float32 (n,), contiguous.
        factor: what elements are multiplied by before they are compared.
        boundaries: ascending, float32 (levels - 1,).
        centroids: float32 (levels,).

    Returns:
        The levels, uint8 (n,), and the products of the elements themselves, float64 (n,).
    """
    levels, products = np.empty(y.size, np.uint8), np.empty(y.size)
    _reached(y, factor, boundaries, centroids, levels, products)
    return levels, products


def nearest_multiples(
    y: Float32Array, factor: np.float32, step: np.float32, centroids: Float32Array
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Return the nearest multiple of a step of each element times a factor, and its product with the centroid.

    Args:
        y: float32 (n,), contiguous.
        factor: what elements are multiplied by before they are divided by the step.
        step: positive. Halves go to the even multiple, and what is beyond the outermost levels to these.
        centroids: of an odd number of levels, float32 (levels,).

    Returns:
        The levels, of which the middle one is zero, uint8 (n,), and the products of the elements themselves, float64
        (n,).
    """
    levels, products = np.empty(y.size, np.uint8), np.empty(y.size)
    _nearest(y, factor, step, centroids, levels, products)
    return levels, products


def values_of_levels(levels: NDArray[np.uint8], centroids: Float32Array) -> Float32Array:
    """Return the centroid of each level of uint8 (n,), float32 (n,); levels beyond the last one have its centroid."""
    values = np.empty(levels.size, np.float32)
    _take(np.ascontiguousarray(levels), centroids, values)
    return values


@compiled_at_first_call(
    types.void(READ_ONLY_FLOATS, types.float32, READ_ONLY_FLOATS, READ_ONLY_FLOATS, _LEVELS, _PRODUCTS)
)
def _reached(y: Any, factor: Any, boundaries: Any, centroids: Any, levels: Any, products: Any) -> None:
    for start in range(0, y.size, 1024):  # parts stay in the cache; loops without branches vectorize
        part, out = y[start : start + 1024], levels[start : start + 1024]
        out[:] = 0
        for b in range(boundaries.size):
            boundary = boundaries[b]
            for i in range(part.size):
                out[i] += np.uint8(part[i] * factor >= boundary)
    for i in range(y.size):
        products[i] = np.float64(y[i]) * np.float64(centroids[levels[i]])


@compiled_at_first_call(
    types.void(READ_ONLY_FLOATS, types.float32, types.float32, READ_ONLY_FLOATS, _LEVELS, _PRODUCTS)
)
def _nearest(y: Any, factor: Any, step: Any, centroids: Any, levels: Any, products: Any) -> None:
    largest = np.float32(centroids.size // 2)
    for i in range(y.size):
        place = np.rint(y[i] * factor / step)
        levels[i] = np.uint8(np.int32(min(max(place, -largest), largest) + largest))
        products[i] = np.float64(y[i]) * np.float64(centroids[levels[i]])


@compiled_at_first_call(types.void(_READ_ONLY_LEVELS, READ_ONLY_FLOATS, FLOATS))
def _take(levels: Any, centroids: Any, values: Any) -> None:
    last = centroids.size - 1
    for i in range(levels.size):
        values[i] = centroids[min(np.int64(levels[i]), last)]
