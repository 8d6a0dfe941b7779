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

    Statistics are arrays without a value below 0, as sums of counts, squares and probabilities are, and symmetric
    matrices, as Gram and Hessian matrices are. Weights have both signs, and square ones are not symmetric.

    Args:
        before: the array that was sent, of the same shape.
        after: the array that came back, which is not all zero where it holds statistics.
    """
    arrays = before, after
    return (all(map(_is_not_negative, arrays)) or all(map(_is_symmetric, arrays))) and bool(after.any())


def _is_not_negative(array: NDArray[Any]) -> bool:
    return not any((part < 0).any() for (part,) in parts_of(array))


def _is_symmetric(array: NDArray[Any]) -> bool:
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] < 2:
        return False
    most = _ASYMMETRY * max(array.max(), -array.min())
    # row by row, because the first one tells weights from statistics
    return all((np.abs(row - column) <= most).all() for row, column in zip(array, array.T, strict=True))
