"""Packed signs of a vector, as a compiled loop over memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from fedmrn_app.kernels.compiled import compiled_at_first_call
from fedmrn_app.layout import Float32Array


def multiply_by_signs(values: Float32Array, bits: NDArray[np.uint8]) -> None:
    """Change the sign of each element of `values`, float32 (n,), whose bit is 0.

    Args:
        values: changed in place.
        bits: eight elements per byte, the lowest bit first, uint8 (ceil(n / 8),).
    """
    _flip(values.view(np.uint32), bits)


@compiled_at_first_call(types.void(types.Array(types.uint32, 1, "C"), types.Array(types.uint8, 1, "C", readonly=True)))
def _flip(words: Any, bits: Any) -> None:
    for byte in range(words.size >> 3):
        flipped, eight = np.uint32(~bits[byte]), words[8 * byte : 8 * byte + 8]
        for k in range(8):
            eight[k] ^= (flipped >> np.uint32(k)) << np.uint32(31)
    for i in range(words.size & ~7, words.size):
        words[i] ^= np.uint32(~bits[i >> 3] >> (i & 7) & 1) << np.uint32(31)
