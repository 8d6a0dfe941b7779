"""How long an array is, and its difference from another one: a compiled loop over memory.

The order of the sums is left open, which only a comparison of two lengths may do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from fedmrn_app.kernels.compiled import READ_ONLY_FLOATS, compiled_at_first_call
from fedmrn_app.layout import Float32Array


def squared_lengths(before: Float32Array, after: Float32Array) -> tuple[float, float]:
    """Return the squared norms of `after` and of `after - before`, in float64.

    Args:
        before: float32 (n,), contiguous.
        after: float32 (n,), contiguous.
    """
    length, difference = _squared_lengths(before, after)
    return float(length), float(difference)


@compiled_at_first_call(
    types.UniTuple(types.float64, 2)(READ_ONLY_FLOATS, READ_ONLY_FLOATS), fastmath={"reassoc", "contract"}
)
def _squared_lengths(before: Any, after: Any) -> Any:
    length = difference = 0.0
    for i in range(after.size):
        wide = np.float64(after[i])
        moved = wide - np.float64(before[i])
        length += wide * wide
        difference += moved * moved
    return length, difference
