"""Loops that compare float32 arrays bit for bit, and replace the values of those that are equal, in one pass.

Memory that is about to be written is read anyway, so that the comparison costs the reading of the other array alone.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from fedmrn_app.kernels.compiled import FLOATS, compiled_at_first_call

_BLOCK = 1024  # values that are compared before they are replaced
_BITS = types.Array(types.uint32, 1, "C")
_KERNEL_BITS, _KERNELS = types.Array(types.uint32, 3, "C"), types.Array(types.float32, 3, "C")

Floats = NDArray[np.float32]


class Compared:
    """An array that is shown values, with all that its loops take, so that a call for a small array takes little.

    Attributes:
        held: what is compared and replaced, float32 (n,), or (outputs, inputs, places) of the kernels of convolutions.
    """

    def __init__(self, held: Floats, shown: Floats, w: Floats, u: Floats) -> None:
        """Take arrays that keep their memory, float32 (n,), or (outputs, places, inputs) of convolutions.

        Args:
            held: in one piece, see above.
            shown: what is compared with it.
            w: weights.
            u: what is added to them.
        """
        self.held = held
        bits, shown_bits = held.view(np.uint32), shown.view(np.uint32)
        replace, same = (_replace, _equal) if held.ndim == 1 else (_replace_kernels, _equal_kernels)
        self._replace = partial(replace, held, bits, shown, shown_bits, w, u)
        self._equal = partial(same, bits, shown_bits)

    def replace_equal(self, factor: np.float32) -> bool:
        """Set `held` to w + factor u if it equals `shown`, and return whether it does; otherwise it stays as it is."""
        return bool(self._replace(factor))

    def equal(self) -> bool:
        """Return whether `held` equals `shown` bit for bit."""
        return bool(self._equal())


@numba.njit(error_model="numpy", forceinline=True)  # type: ignore[untyped-decorator]
def _differ(held: Any, shown: Any, begin: Any, end: Any) -> Any:
    different = np.uint32(0)
    for i in range(begin, end):
        different |= held[i] ^ shown[i]
    return different != 0


@numba.njit(error_model="numpy", forceinline=True)  # type: ignore[untyped-decorator]
def _kernels_differ(held: Any, shown: Any, output: Any) -> Any:
    different = np.uint32(0)
    for i in range(held.shape[1]):
        for k in range(held.shape[2]):
            different |= held[output, i, k] ^ shown[output, k, i]
    return different != 0


@compiled_at_first_call(types.boolean(*[FLOATS, _BITS] * 2, *[FLOATS] * 2, types.float32))
def _replace(held: Any, held_bits: Any, shown: Any, shown_bits: Any, w: Any, u: Any, factor: Any) -> Any:
    for begin in range(0, held.size, _BLOCK):
        end = min(begin + _BLOCK, held.size)
        if _differ(held_bits, shown_bits, begin, end):
            for i in range(begin):
                held[i] = shown[i]
            return False
        for i in range(begin, end):
            held[i] = w[i] + factor * u[i]
    return True


@compiled_at_first_call(
    types.boolean(_KERNELS, _KERNEL_BITS, _KERNELS, _KERNEL_BITS, _KERNELS, _KERNELS, types.float32)
)
def _replace_kernels(held: Any, held_bits: Any, shown: Any, shown_bits: Any, w: Any, u: Any, factor: Any) -> Any:
    outputs, inputs, places = held.shape
    for output in range(outputs):
        if _kernels_differ(held_bits, shown_bits, output):
            for before in range(output):
                for i in range(inputs):
                    for k in range(places):
                        held[before, i, k] = shown[before, k, i]
            return False
        for i in range(inputs):
            for k in range(places):
                held[output, i, k] = w[output, k, i] + factor * u[output, k, i]
    return True


@compiled_at_first_call(types.boolean(_BITS, _BITS))
def _equal(held: Any, shown: Any) -> Any:
    for begin in range(0, held.size, _BLOCK):  # noqa: SIM110 (Numba takes no generator)
        if _differ(held, shown, begin, min(begin + _BLOCK, held.size)):
            return False
    return True


@compiled_at_first_call(types.boolean(_KERNEL_BITS, _KERNEL_BITS))
def _equal_kernels(held: Any, shown: Any) -> Any:
    for output in range(held.shape[0]):  # noqa: SIM110
        if _kernels_differ(held, shown, output):
            return False
    return True
