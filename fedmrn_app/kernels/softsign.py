"""How far weights have moved, on a scale of their own: x / (|x| + s), as floats or in 16 levels; compiled loops.

Each element takes four operations that IEEE 754 rounds exactly, so that every machine finds the same one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from fedmrn_app.kernels.compiled import FLOATS, READ_ONLY_FLOATS, compiled_at_first_call
from fedmrn_app.layout import Float32Array

_LEVELS, _LARGEST, _ZERO = np.float32(16), np.float32(15), np.float32(0)


def fill_softsign(x: Float32Array, scale: np.float32, out: Float32Array) -> None:
    """Write x / (|x| + scale) to `out`.

    Args:
        x: float32 (n,), contiguous.
        scale: positive.
        out: float32 (n,), contiguous.
    """
    _fill_softsign(x, scale, out)


def fill_trends(x: Float32Array, scale: np.float32, out: NDArray[np.int8]) -> None:
    """Write 16 x / (|x| + scale) to `out`, from -15 to 15 and rounded towards zero; 0 where x is not finite.

    Args:
        x: float32 (n,), contiguous.
        scale: positive.
        out: int8 (n,), contiguous.
    """
    _fill_trends(x, scale, out)


@compiled_at_first_call(types.void(READ_ONLY_FLOATS, types.float32, FLOATS))
def _fill_softsign(x: Any, scale: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = x[i] / (abs(x[i]) + scale)


@compiled_at_first_call(types.void(READ_ONLY_FLOATS, types.float32, types.Array(types.int8, 1, "C")))
def _fill_trends(x: Any, scale: Any, out: Any) -> None:
    for i in range(x.size):
        level = x[i] / (abs(x[i]) + scale) * _LEVELS
        level = level if level == level else _ZERO
        out[i] = np.int8(np.int32(min(max(level, -_LARGEST), _LARGEST)))
