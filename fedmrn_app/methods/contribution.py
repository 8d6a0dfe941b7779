"""A reply's contribution to the mean: checked and decoded once, and added piece by piece to the sum of all replies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import BLOCK, Float32Array, blocks
from fedmrn_app.wire.sums import square_sum


class Contribution(ABC):
    """The checked content of a body.

    Attributes:
        held: the weights of which the body has values, bool (d,); None for those that the method selected.
    """

    held: NDArray[np.bool_] | None = None

    @abstractmethod
    def add_to(self, total: Float32Array, weight: np.float32, first: int = 0) -> None:
        """Add `weight` times the elements of the contribution from `first` on to `total`, in place.

        Args:
            total: float32 (n,); adding all pieces gives the bits of adding the whole.
            weight: factor of the contribution.
            first: a multiple of BLOCK.
        """

    def square_norm(self, count: int) -> float:
        """Return the squared L2 norm of the contribution to `count` weights."""
        squares, piece = 0.0, np.empty(8 * BLOCK, np.float32)
        for first in range(0, count, piece.size):
            part = piece[: min(piece.size, count - first)]
            part[:] = 0
            self.add_to(part, np.float32(1), first)
            squares += square_sum(part)
        return squares


@dataclass(frozen=True)
class VectorContribution(Contribution):
    """A contribution as a vector, float32 (d,)."""

    vector: Float32Array
    held: NDArray[np.bool_] | None = None

    def add_to(self, total: Float32Array, weight: np.float32, first: int = 0) -> None:
        """Add a piece of the vector."""
        for part in blocks(total.size):
            total[part] += weight * self.vector[first + part.start : first + part.stop]

    def square_norm(self, count: int) -> float:
        """Return the squared L2 norm of the vector."""
        return square_sum(self.vector)


@dataclass(frozen=True)
class SparseContribution(Contribution):
    """A contribution of k nonzero elements.

    Attributes:
        places: of the elements, ascending, (k,).
        values: float32 (k,).
    """

    places: NDArray[np.intp]
    values: Float32Array

    def add_to(self, total: Float32Array, weight: np.float32, first: int = 0) -> None:
        """Add the elements of a piece."""
        start, stop = np.searchsorted(self.places, (first, first + total.size))
        total[self.places[start:stop] - first] += weight * self.values[start:stop]

    def square_norm(self, count: int) -> float:
        """Return the squared L2 norm of the values."""
        return square_sum(self.values)
