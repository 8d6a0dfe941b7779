"""The fixed-point numbers of a secure sum, in which the changes of values are added."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Steps:
    """Fixed-point numbers: multiples of a power of two, up to a bound.

    Attributes:
        bits: of one client's number, sign included.
        bound: largest absolute value; larger ones are cut to it.
    """

    bits: int
    bound: float

    @property
    def step(self) -> float:
        """The power of two of which numbers are multiples."""
        mantissa, exponent = math.frexp(self.bound)
        return math.ldexp(1.0, exponent - (mantissa == 0.5) - (self.bits - 1))

    @property
    def largest(self) -> int:
        """The largest number of steps."""
        return min(math.floor(self.bound / self.step), (1 << self.bits - 1) - 1)
