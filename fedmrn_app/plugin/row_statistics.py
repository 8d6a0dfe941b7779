"""Tells arrays of statistics, such as counts, variances and Hessian matrices, from weights.

An app that sums statistics uses each value of a reply. A method's error, which training makes good for weights, stays
in them, and makes counts and variances negative.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.plugin.comparison import parts_of

_FIRST = 64  # values that are looked at before the others, because those of weights have both signs
_ASYMMETRY = 1e-5  # of the largest value: what sums in another order leave


def is_statistic(before: NDArray[np.generic], after: NDArray[np.generic]) -> bool:
    """Return whether a floating-point array holds statistics, by its values.

    Weights have both signs, and square ones are not symmetric. Statistics are arrays without a value below 0, as sums
    of counts, squares and probabilities are, and symmetric matrices, as Gram and Hessian matrices are.

    Args:
        before: the array that was sent, of the same shape.
        after: the array that came back.
    """
    return _is_not_negative(before, after) or _is_symmetric(before, after)


def _is_not_negative(*arrays: NDArray[Any]) -> bool:
    if any((array.reshape(-1)[:_FIRST] < 0).any() for array in arrays):
        return False
    return not any((part < 0).any() for array in arrays for (part,) in parts_of(array)) and bool(arrays[-1].any())


def _is_symmetric(*arrays: NDArray[Any]) -> bool:
    for array in arrays:
        if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] < 2:
            return False
        if not np.allclose(array[0], array[:, 0], rtol=0, atol=_ASYMMETRY * np.abs(array).max()):
            return False
    return all(np.abs(array - array.T).max() <= _ASYMMETRY * np.abs(array).max() for array in arrays) and bool(
        arrays[-1].any()
    )
