"""Decoded updates whose coordinates are rotated back while they are added, block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.contribution import Contribution
from fedmrn_app.methods.hadamard import BLOCK, rotate_back_in_place
from fedmrn_app.wire.primitives import all_finite
from fedmrn_app.wire.sums import square_sum

READ_COPIES = 0.1  # of the model, to read the signs of a body
_SURE = np.finfo(np.float32).max / BLOCK**2  # two transforms make an element at most BLOCK times as large


@dataclass(frozen=True)
class RotatedContribution(Contribution):
    """A contribution R^-1 y.

    Attributes:
        coordinates: returns the elements of y from the start of a block to its end, float32, in new memory.
        seed: of R.
        count: number of elements.
    """

    coordinates: Callable[[int, int], Float32Array]
    seed: int
    count: int

    def add_to(self, total: Float32Array, weight: np.float32, first: int = 0) -> None:
        """Rotate the blocks of a piece back, and add them."""
        end = first + total.size
        for start in range(first - first % BLOCK, end, BLOCK):
            stop = min(start + BLOCK, self.count)
            rotated = self.coordinates(start, stop)
            rotate_back_in_place(rotated, self.seed, start, self.count)
            low, high = max(start, first), min(stop, end)
            part = total[low - first : high - first]
            part += weight * rotated[low - start : high - start]

    def square_norm(self, count: int) -> float:
        """Return the squared L2 norm of y, which is that of the contribution: R is orthogonal."""
        return sum(square_sum(self.coordinates(start, min(start + BLOCK, count))) for start in range(0, count, BLOCK))


def surely_finite(values: Float32Array) -> bool:
    """Return whether coordinates of at most these sizes are finite once they are rotated back."""
    return bool(np.abs(values).max(initial=0) <= _SURE)


def repeated(values: Float32Array, lengths: Sequence[int], start: int, stop: int) -> Float32Array:
    """Return the elements from `start` to `stop` of values that are repeated, float32 (stop - start,).

    Args:
        values: of the stretches, float32 (s,).
        lengths: numbers of elements of the stretches; all but those of the last block are blocks.
        start: a multiple of `BLOCK`.
        stop: end of the same block.
    """
    stretch = start // BLOCK
    lasts = lengths[stretch : stretch + 1] if stop - start == BLOCK else lengths[stretch:]
    return np.repeat(values[stretch : stretch + len(lasts)], lasts)


def finite_rotate_back(rotated: Float32Array, seed: int) -> Float32Array:
    """Return the update of decoded coordinates, float32 (d,), in their memory.

    Raises:
        PayloadError: the update is not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        rotate_back_in_place(rotated, seed)
    if not all_finite(rotated):
        raise PayloadError("body has scales so large that the update is not finite", code="not-finite")
    return rotated
