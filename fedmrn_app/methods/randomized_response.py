"""Randomized response for masks: clients flip bits, and the server removes the expected effect from the mean.

Warner 1965, "Randomized Response: A Survey Technique for Eliminating Evasive Answer Bias". A bit b is sent as 1 - b
with probability P, so that (sent - P) / (1 - 2 P) has the expectation b. For each single bit that is local
differential privacy with epsilon = log((1 - P) / P); for d bits that may all change together, epsilon is d times that.
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
        probability: P, above 0 and below 1/2.
        secret: whether flips are drawn from the operating system; otherwise they follow from the client's seed, which
            the server knows.
    """

    probability: float
    secret: bool = True

    @classmethod
    def of_epsilon(cls, epsilon: float, secret: bool) -> RandomizedResponse:
        """Return the randomized response with this epsilon per bit."""
        return cls(1 / (1 + math.exp(epsilon)), secret)

    @property
    def epsilon(self) -> float:
        """Epsilon of a single bit."""
        return math.log((1 - self.probability) / self.probability)

    @property
    def gain(self) -> float:
        """The factor 1 / (1 - 2 P) of a bit less P."""
        return 1 / (1 - 2 * self.probability)

    def apply(self, bits: NDArray[np.bool_], private_seed: int) -> NDArray[np.bool_]:
        """Return the bits as they are sent, bool (d,)."""
        return bits ^ draw(self.probability, bits.size, None if self.secret else mix(private_seed))
