"""What became of an array: whether it came back as it was sent, moved, or is a difference itself.

Arrays are compared in parts that stay in cache, and a comparison ends at the first part that decides it, so that large
arrays need no temporaries of their size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import blocks

_LARGE = 1 << 16  # values of arrays that are worth a compiled loop


def is_same(before: NDArray[np.generic], after: NDArray[np.generic]) -> bool:
    """Return whether arrays have the same shape and values, where NaN equals NaN."""
    return before.shape == after.shape and all(_are_equal(x, y) for x, y in parts_of(before, after))


def is_unmoved(before: NDArray[np.generic], after: NDArray[np.generic]) -> bool:
    """Return whether a tensor is as it was sent, or as a bfloat16 model holds what it was sent in float32."""
    if before.shape != after.shape:
        return False
    same, rounded = True, before.dtype == after.dtype == np.float32
    for x, y in parts_of(before, after):
        same = same and _are_equal(x, y)
        rounded = rounded and bool(np.array_equal(_in_bfloat16(x), y.view(np.uint32)))
        if not (same or rounded):
            return False
    return True


@dataclass(frozen=True)
class Change:
    """An array as it was sent and as it came back.

    Attributes:
        before, after: the arrays, of one shape.
    """

    before: NDArray[np.generic]
    after: NDArray[np.generic]

    @cached_property
    def _lengths(self) -> tuple[float, float]:
        return squared_lengths(self.before, self.after)

    @property
    def is_difference(self) -> bool:
        """Whether what came back is at most half as long as its difference from what was sent."""
        length, difference = self._lengths
        return 4 * length < difference

    @property
    def is_update(self) -> bool:
        """Whether what came back differs from what was sent by at most half of its length, as trained weights do."""
        length, difference = self._lengths
        return 4 * difference <= length

    @property
    def has_grown(self) -> bool:
        """Whether what came back is more than four times as long as what was sent, which was not zero."""
        return not self.is_update and 0 < 16 * squared_lengths(self.after, self.before)[0] < self._lengths[0]


def is_difference(before: NDArray[np.generic], after: NDArray[np.generic]) -> bool:
    """Return whether an array is at most half as long as its difference from what was sent."""
    return Change(before, after).is_difference


def squared_lengths(before: NDArray[np.generic], after: NDArray[np.generic]) -> tuple[float, float]:
    """Return the squared length of what came back, and of its difference from what was sent."""
    if before.dtype == after.dtype == np.float32 and after.size >= _LARGE and _are_contiguous(before, after):
        from fedmrn_app.kernels import lengths  # Numba takes most of what an import loads

        flat: Any = before.reshape(-1), after.reshape(-1)
        return lengths.squared_lengths(*flat)
    length = difference = 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        for x, y in parts_of(before, after):
            wide: NDArray[np.float64] = y.astype(np.float64)
            length += float(np.square(wide).sum())
            wide -= x
            difference += float(np.square(wide, out=wide).sum())
    return length, difference


def find_tied(name: str, values: Mapping[str, NDArray[np.generic]], others: Sequence[str]) -> str | None:
    """Return the first of other tensors that holds the same values; None if none does."""
    return next((other for other in others if other != name and is_same(values[other], values[name])), None)


def parts_of(*arrays: NDArray[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    """Yield the values of arrays of one size, part by part."""
    flat = [array.reshape(-1) for array in arrays]
    return (tuple(x[part] for x in flat) for part in blocks(flat[0].size))


def _are_contiguous(*arrays: NDArray[Any]) -> bool:
    return all(array.flags.c_contiguous for array in arrays)


def _are_equal(x: NDArray[Any], y: NDArray[Any]) -> bool:
    same = x == y
    return bool(same.all()) or bool((same | ((x != x) & (y != y))).all())


def _in_bfloat16(x: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return the bits of float32 values that are rounded to the upper 16 bits, uint32 (n,)."""
    bits: NDArray[Any] = x.view(np.uint32)
    # adding half of the last place that stays, and a bit for ties to even
    rounded: NDArray[np.uint32] = (bits + (0x7FFF + ((bits >> 16) & 1))) & 0xFFFF0000
    return rounded
