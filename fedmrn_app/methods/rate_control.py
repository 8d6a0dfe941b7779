"""The scale of the noise, set by the server in each round so that replies meet a budget of bits.

Coded masks are short where the noise is large beside the update, for a bit that is set then is rare. What decides is
the ratio r of the updates' size to the noise's scale. How many bits the last masks took tells the server their r, and
so the size of the updates; it expects what the size will be in the next round, and divides by the r of the budget.

The papers have a fixed scale. One scale is right for all tensors: with scales in proportion to each tensor's updates,
masks of the same length learned less, for the few large updates of a tensor then are beyond its noise.

How bits depend on r is worked out for updates of a Laplace distribution under uniform noise. For others the sizes come
out as those that would take as many bits, which is all that is asked of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array
from fedmrn_app.noise import MAX_ALPHA, MIN_ALPHA

LEAST_RATIO, MOST_RATIO = 1e-3, 0.6  # an aim beyond these gains nothing: masks of 0.013 and of 0.89 bits
GROWTH, SHRINKAGE = 2.5, 8.0  # of the scale in a round, at most; updates shrink quickly at first
GAIN, MOST = 0.5, 0.2  # how much of a change of the size is taken for a trend, and the largest trend


@dataclass(frozen=True)
class RateControl:
    """Sets the scale from round to round.

    Its state is float32 (3,): the scale, the logarithm of the updates' size, NaN before there were any, and by how much
    that changes in a round.

    Attributes:
        bits: of a whole reply, per trained parameter.
        alpha: the scale in the first round.
    """

    bits: float
    alpha: float

    def first(self) -> Float32Array:
        """The state before the first round."""
        return np.array([self.alpha, np.nan, 0], np.float32)

    def next(self, state: Float32Array, spent: float, left: float) -> Float32Array:
        """The state of the next round.

        Args:
            state: of this round.
            spent: bits per masked weight that the masks took, mean over the replies.
            left: bits per masked weight that the budget leaves to masks.
        """
        ratios, bits = _curve()
        scale, size, trend = map(float, state)
        seen = float(np.log(np.interp(spent, bits, ratios) * scale))
        if not np.isnan(size):
            trend = float(np.clip(trend + GAIN * (seen - size - trend), -MOST, MOST))
        aim = np.clip(np.interp(left, bits, ratios), LEAST_RATIO, MOST_RATIO)
        following = np.clip(np.exp(seen + trend) / aim, scale / SHRINKAGE, scale * GROWTH)
        within = np.clip(following, 2 * MIN_ALPHA, MAX_ALPHA / 2)  # in float32 too
        return np.array([within, seen, trend], np.float32)


@cache
def _curve() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ratios, and the bits that a mask takes per weight at each of them.

    A bit is set if the update is on the threshold's side of zero and beyond it. The threshold is the product of two
    uniforms, whose density at t is -log t.
    """
    ratios = np.geomspace(1e-4, 10, 120)
    t = (np.arange(4000) + 0.5) / 4000
    t = t**3  # many nodes where thresholds are small
    weights = -np.log(t) * t ** (2 / 3)
    p = np.exp(-t / ratios[:, None]) / 2
    entropy = -(p * np.log2(np.maximum(p, 1e-300)) + (1 - p) * np.log2(1 - p))
    return ratios, entropy @ weights / weights.sum()
