"""Complex numbers as pairs of real ones, which the methods code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def is_paired(shape_sent: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Return whether an array is coded as pairs: a complex one with more than one element."""
    return dtype.kind == "c" and int(np.prod(shape_sent)) > 1


def in_pairs(values: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return arrays with the complex ones as real ones."""
    return {name: to_pairs(x) if is_paired(x.shape, x.dtype) else x for name, x in values.items()}


def to_pairs(array: NDArray[Any]) -> NDArray[Any]:
    """Return complex numbers as real ones: (n,) as (2 n,), and (..., n) as (..., n, 2)."""
    real = np.ascontiguousarray(array).view(array.real.dtype)
    return real if array.ndim == 1 else real.reshape(*array.shape, 2)


def from_pairs(real: NDArray[Any]) -> NDArray[Any]:
    """Return the complex numbers of pairs, the inverse of `to_pairs`."""
    numbers = np.ascontiguousarray(real).view(np.result_type(real.dtype, np.complex64))
    return numbers if real.ndim == 1 else numbers[..., 0]
