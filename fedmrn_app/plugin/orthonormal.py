"""Tells the bases of subspaces, which power iteration and PCA send, from weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_ROWS = 1 << 12  # rows of a matrix that are multiplied at a time
_ERROR, _ERROR_HALF = 1e-4, 1e-2  # of the products of two vectors, in float32 and in float16


def is_orthonormal(matrix: NDArray[Any]) -> bool:
    """Return whether the columns of a matrix, or its rows if these are fewer, are orthonormal.

    Trained weights are not. Two vectors are looked at first, so that weights take no time.
    """
    if matrix.ndim != 2 or matrix.size < 2:
        return False
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    error = _ERROR_HALF if matrix.dtype.itemsize < 4 else _ERROR
    return all(_is_identity(tall[:, :columns], error) for columns in sorted({1, min(2, tall.shape[1]), tall.shape[1]}))


def _is_identity(columns: NDArray[Any], error: float) -> bool:
    """Return whether the products of all pairs of columns are those of orthonormal ones."""
    gram = np.zeros((columns.shape[1], columns.shape[1]))
    for start in range(0, len(columns), _ROWS):
        part = columns[start : start + _ROWS].astype(np.float64)
        gram += part.T @ part
    return bool((np.abs(gram - np.eye(len(gram))) <= error).all())
