"""Randomised response for masks (Warner 1965): clients flip bits, and the server takes the flips out of the mean.

A bit b is sent as 1 - b with probability P; (sent - P) / (1 - 2 P) has the expectation b. Of each bit by itself the
server learns epsilon = log((1 - P) / P); of d bits that may all change together, d times that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.kernels.secure_random import draw
from fedmrn_app.seeds import mix


@dataclass(frozen=True)
class RandomizedResponse:
    """Randomized response on each bit with one probability.

    Attributes:
        probability: P, above 0 and below one half.
        secret: whether they are drawn from the operating system; else from the client's seed, which the server knows.
    """

    probability: float
    secret: bool = True

    @classmethod
    def of_epsilon(cls, epsilon: float, secret: bool) -> RandomizedResponse:
        """The flips that reveal so much of each bit."""
        return cls(1 / (1 + math.exp(epsilon)), secret)

    @property
    def epsilon(self) -> float:
        """Of each bit by itself."""
        return math.log((1 - self.probability) / self.probability)

    @property
    def gain(self) -> float:
        """What the sum is multiplied by, once `probability` is taken off each bit: 1 / (1 - 2 P)."""
        return 1 / (1 - 2 * self.probability)

    def apply(self, bits: NDArray[np.bool_], private_seed: int) -> NDArray[np.bool_]:
        """The bits as they are sent, bool (d,)."""
        return bits ^ draw(self.probability, bits.size, None if self.secret else mix(private_seed))
