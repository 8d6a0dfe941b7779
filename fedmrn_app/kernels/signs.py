"""Packed signs of a vector, as a compiled loop over memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from fedmrn_app.kernels.compiled import FLOATS, compiled_at_first_call
from fedmrn_app.layout import Float32Array


def multiply_by_signs(values: Float32Array, bits: NDArray[np.uint8]) -> None:
    """Change the sign of each element of `values`, float32 (n,), whose bit is 0.

    Args:
        values: changed in place.
        bits: eight elements per byte, the lowest bit first, uint8 (ceil(n / 8),).
    """
    _multiply(values, bits)


@compiled_at_first_call(types.void(FLOATS, types.Array(types.uint8, 1, "C", readonly=True)))
def _multiply(values: Any, bits: Any) -> None:
    for i in range(values.size):
        values[i] = values[i] if bits[i >> 3] >> (i & 7) & 1 else -values[i]
