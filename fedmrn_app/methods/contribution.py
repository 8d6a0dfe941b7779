"""What a server has read and checked of a body, before it is added to the sum of all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from fedmrn_app.layout import Float32Array

BLOCK = 1 << 15  # elements that are added at a time, so that temporaries stay in cache; whole bytes of bits


class Contribution(ABC):
    """A checked body."""

    @abstractmethod
    def add_to(self, total: Float32Array, share: np.float32, first: int = 0) -> None:
        """Add `share` times a piece of what the body stands for, from element `first` on, to `total` in place.

        Args:
            total: float32 (n,); the sums of all pieces are those of the whole bit for bit.
            share: what the contribution is multiplied by.
            first: a multiple of BLOCK.
        """


@dataclass(frozen=True)
class VectorContribution(Contribution):
    """The contribution itself, float32 (d,)."""

    vector: Float32Array

    def add_to(self, total: Float32Array, share: np.float32, first: int = 0) -> None:
        """See `Contribution`."""
        for start in range(0, total.size, BLOCK):
            part = total[start : start + BLOCK]
            part += share * self.vector[first + start : first + start + part.size]
