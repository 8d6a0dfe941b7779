"""The scale of the noise, set by the server for each tensor and round so that replies meet a budget of bits.

Coded masks are short where the noise is large beside the update: a bit that is set then is rare. What decides is the
ratio r of the mean |update| of a tensor to the noise's scale. The server does not see updates, but the share of set
bits in a tensor's coded masks tells its r, and dividing gives every tensor the scale at which its r is the one aimed
at. The papers have one fixed scale.

How bits and shares depend on r is worked out for updates of a Laplace distribution under uniform noise. How far other
ones are from that shows in each round's bits, and the aim is corrected by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.noise import MAX_ALPHA, MIN_ALPHA

LEAST_RATIO, MOST_RATIO = 1e-3, 0.6  # an aim beyond these gains nothing: masks of 0.013 and of 0.89 bits
TREND, MOST_TREND = 0.6, 0.3  # how much of the last change of updates' size goes on, and the most of that
FASTEST_UP, FASTEST_DOWN = 2.5, 8.0  # how much a scale grows or shrinks in a round, at most: updates shrink at first

Curve = NDArray[np.float64]


@dataclass(frozen=True)
class Steering:
    """Sets the scale of each tensor's noise from round to round.

    Its state is float32 (T + 1,): the scales, then the logarithm of the last updates' size, NaN before there were any.

    Attributes:
        bits: of a whole reply, per trained parameter.
        alpha: the scale in the first round.
    """

    bits: float
    alpha: float

    def first(self, layout: Layout) -> Float32Array:
        """The state before the first round."""
        return np.array([self.alpha] * len(layout.shapes) + [np.nan], np.float32)

    def scales(self, state: Float32Array) -> Float32Array:
        """The scale of each tensor's noise in a round, float32 (T,)."""
        return state[:-1]

    def next(
        self, state: Float32Array, layout: Layout, set_shares: Float32Array, spent: float, left: float
    ) -> Float32Array:
        """The state of the next round.

        Args:
            state: of this round.
            layout: of the tensors.
            set_shares: of the coded bits of each tensor those that are set, (T,), mean over the replies.
            spent: bits per masked weight that the masks took, mean over the replies.
            left: bits per masked weight that the budget leaves to masks.
        """
        ratios, bits, shares = _curves()
        seen = np.interp(set_shares, shares, ratios)
        together = np.exp(np.average(np.log(seen), weights=layout.sizes))
        aim = np.interp(left, bits, ratios) / np.interp(spent, bits, ratios) * together
        scales = state[:-1].astype(np.float64)
        size = np.average(np.log(seen * scales), weights=layout.sizes)
        trend = np.clip(size - state[-1], -MOST_TREND, MOST_TREND) if np.isfinite(state[-1]) else 0
        change = seen / np.clip(aim, LEAST_RATIO, MOST_RATIO) * np.exp(TREND * trend)
        scales *= np.clip(change, 1 / FASTEST_DOWN, FASTEST_UP)
        following: Float32Array = np.append(np.clip(scales, MIN_ALPHA, MAX_ALPHA), size).astype(np.float32)
        return following


@cache
def _curves() -> tuple[Curve, Curve, Curve]:
    """Ratios, and at each of them the bits that a mask takes per weight and the share of its bits that are set.

    A bit is set if the update is on the threshold's side of zero and beyond it. The threshold is the product of two
    uniforms, whose density at t is -log t.
    """
    ratios = np.geomspace(1e-4, 10, 120)
    t = (np.arange(4000) + 0.5) / 4000
    t = t**3  # many nodes where thresholds are small
    weights = -np.log(t) * 3 * t ** (2 / 3) / 4000
    p = np.exp(-t / ratios[:, None]) / 2
    entropy = -(p * np.log2(np.maximum(p, 1e-300)) + (1 - p) * np.log2(1 - p))
    return ratios, entropy @ weights / weights.sum(), p @ weights / weights.sum()
