"""Tells biases and statistics of a model from other arrays of one dimension, such as counts."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.plugin.arrays import KINDS, Values, Way
from fedmrn_app.plugin.settings import DEFAULT_DENSE_BITS
from fedmrn_app.wire.dense import is_even, most_steps

LONG = 4096  # values above which an array is not sent exactly
_SPREAD = 100.0  # of changes, see `is_even`
# The last part of the names that PyTorch, Keras, Flax and scikit-learn give them.
_NAMES = re.compile(
    r"(?:^|[./])(?:bias|weight|scale|gamma|beta|running_mean|running_var|moving_mean|moving_variance|offset"
    r"|intercept_?|bias_[a-z]+_l\d+(?:_reverse)?|weight_[gv]|in_proj_bias|b\d*)(?::0)?$"
)
_NAMELESS = re.compile(r"^(?:arr|array|param|parameter|p|layer|tensor)?[_.]?\d+$")


def way_of_vector(name: str, before: NDArray[np.generic], after: NDArray[np.generic], arrays: Values) -> Way:
    """Return how a floating-point array of one dimension is sent.

    Args:
        name: of the array.
        before: the array that was sent.
        after: the array that came back.
        arrays: all arrays of the record, whose shapes say which lengths biases have.
    """
    if is_of_model(name, after, arrays) and is_even(before, after, most_steps(DEFAULT_DENSE_BITS), _SPREAD):
        return Way.DENSE
    return Way.EXACT if after.size <= LONG else Way.BOUNDED


def is_of_model(name: str, array: NDArray[np.generic], arrays: Values) -> bool:
    """Return whether a vector is called like a bias or a statistic of a model, or has the length of one and no name."""
    return bool(_NAMES.search(name)) or bool(_NAMELESS.match(name) and array.size in _lengths(arrays))


def _lengths(arrays: Values) -> set[int]:
    """Return the numbers of inputs and outputs of all matrices and kernels."""
    return {size for value in arrays.values() if value.ndim >= 2 for size in (value.shape[0], value.shape[-1])}


def send_with_neighbours(ways: NDArray[np.uint8], uneven: Collection[int], arrays: Values) -> None:
    """Send vectors of a model exactly beside uneven ones of their length, such as means beside variances, in place.

    Args:
        ways: of the arrays, uint8 (tensors,).
        uneven: numbers of the vectors that one step for all values would not suit.
        arrays: of the record; single numbers between vectors, such as counters, separate none.
    """
    shapes = [value.shape for value in arrays.values()]
    numbers = [number for number, value in enumerate(arrays.values()) if value.size != 1]
    for _, group in groupby(numbers, key=lambda number: shapes[number]) if uneven else ():
        together = list(group)
        if not set(uneven).isdisjoint(together):
            ways[[number for number in together if ways[number] & KINDS == Way.DENSE]] = Way.EXACT
