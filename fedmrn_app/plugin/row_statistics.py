"""Tells arrays of statistics, such as counts, variances and Hessian matrices, from weights.

Training corrects the error of a method in weights. In statistics the error stays, and may make counts and variances
negative.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.plugin.comparison import parts_of

_ASYMMETRY = 1e-5  # of the largest value: what sums in another order leave


def is_statistic(before: NDArray[np.generic], after: NDArray[np.generic]) -> bool:
    """Return whether a floating-point array holds statistics, by its values.

    Statistics are arrays without a value below 0, as sums of counts, squares and probabilities are, arrays of whole
    numbers, as count sketches are, and symmetric matrices or stacks of such, as Gram and Hessian matrices are. Weights
    have both signs, are fractions, and square ones are not symmetric.

    Args:
        before: the array that was sent, of the same shape.
        after: the array that came back, which is not all zero where it holds statistics.
    """
    arrays = before, after
    kinds = _is_not_negative, _is_whole, _is_symmetric
    return any(all(map(kind, arrays)) for kind in kinds) and bool(after.any())


def _is_not_negative(array: NDArray[Any]) -> bool:
    return not any((part < 0).any() for (part,) in parts_of(array))


def _is_whole(array: NDArray[Any]) -> bool:
    return all((part == np.rint(part)).all() for (part,) in parts_of(array))


def _is_symmetric(array: NDArray[Any]) -> bool:
    if array.ndim < 2 or array.shape[-2] != array.shape[-1] or array.shape[-1] < 2 or not array.size:
        return False
    most = _ASYMMETRY * max(array.max(), -array.min())
    # row by row, because the first one tells weights from statistics
    stack = array.reshape(-1, *array.shape[-2:])
    return all(
        (np.abs(row - column) <= most).all() for matrix in stack for row, column in zip(matrix, matrix.T, strict=True)
    )
