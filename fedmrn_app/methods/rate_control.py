"""Rate control: the server sets the scale of the noise in each round so that replies meet a budget of bits.

Coded masks are short where the noise is large compared with the update, because set bits are rare then. Their length
depends on the ratio r of the updates' size to the scale of the noise. From the length of the last masks the server
infers r, and so the size of the updates; it extrapolates that size to the next round and divides it by the ratio that
meets the budget. Before the first replies it takes the size at which masks of noise of `alpha` have 0.8 bits; signed
masks begin with `alpha` itself. The first replies decide the second scale alone, however far it is from the first one.

The papers have a fixed scale. One scale serves all tensors: with scales in proportion to the updates of each tensor,
masks of the same length learned less, because the few large updates of a tensor exceed its noise.

The curve of bits over r assumes updates with a Laplace distribution and uniform noise. For other noise, the inferred
sizes are those of Laplace updates whose masks under uniform noise have the same length; the control loop corrects the
difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array
from fedmrn_app.noise import MAX_ALPHA, MIN_ALPHA

# Ratios that are aimed at: masks of 0.058 to 0.51 bits per weight, signed ones to 0.71. Shorter masks have so much
# noise that nothing is learned. With less noise large updates are clipped: masks of 0.89 bits learn no more where
# clients have all labels, and end 10 points lower where they have two.
MIN_RATIO, MAX_RATIO, MAX_SIGNED_RATIO = 6e-3, 0.125, 0.25
CLEAR_RATIO = 0.6  # masks of 0.89 bits; above it masks of any ratio are about as long
FIRST_BITS = 0.8  # per weight, of the first masks at the default alpha on Fashion-MNIST
LEAST_BYTES = 125  # of a mask
GROWTH, SHRINKAGE = 2.5, 8.0  # largest factors of the scale per round after the first; updates shrink quickly at first
# Largest scale in root mean squares of the weights, of models without batch norm. Larger noise drowns such weights, and
# its gradients make updates, and with them the noise, still larger. A CNN of 6,032 weights learns less with 2 and 4.
SCALE_LIMIT = 8.0
GAIN, MAX_TREND = 0.5, 0.2  # share of a change of the log size that enters its trend, and the largest trend


@dataclass(frozen=True)
class RateControl:
    """Computes the scale of the noise from round to round.

    The state is float32 (3,): the scale, the logarithm of the updates' size (NaN before the first replies), and the
    trend of that logarithm per round.

    Attributes:
        bits: budget of a whole reply, in bits per trained parameter.
        alpha: scale at which the masks of the first round are expected to take 0.8 bits per weight.
        signed: whether masks are signed. They begin with `alpha`: all of their noise is added, and with much of it
            before anything was learned some runs learned little.
    """

    bits: float
    alpha: float
    signed: bool = False

    def first(self, left: float) -> Float32Array:
        """Return the state before the first round; `left` is as for `next`."""
        growth = 1.0 if self.signed else _read_ratio(FIRST_BITS) / self._ratio_of(left)
        return np.array([_in_range(self.alpha * growth), np.nan, 0], np.float32)

    def log_size(self, state: Float32Array, spent: float) -> float:
        """Return the logarithm of the updates' size in a round, see `next`."""
        ratio, (scale, size, _) = _read_ratio(spent), map(float, state)
        # above CLEAR_RATIO no ratio can be read from the length of masks
        return float(np.log((min(ratio, CLEAR_RATIO) if np.isnan(size) else ratio) * scale))

    def next(self, state: Float32Array, spent: float, left: float, aimed: float | None = None) -> Float32Array:
        """Return the state of the next round.

        Args:
            state: state of this round.
            spent: bits per masked weight of this round's masks, mean over the replies.
            left: bits per masked weight that the next round leaves for masks.
            aimed: the same of this round, where rounds differ in it.
        """
        scale, size, trend = map(float, state)
        observed, most = self.log_size(state, spent), np.inf if np.isnan(size) else scale * GROWTH
        if not np.isnan(size):
            trend = float(np.clip(trend + GAIN * (observed - size - trend), -MAX_TREND, MAX_TREND))
        ratio = self._ratio_of(left)
        other = 1.0 if aimed is None else self._ratio_of(aimed) / ratio  # factor by which the scale is to change
        wanted = np.clip(np.exp(observed + trend) / ratio, scale * other / SHRINKAGE, most * other)
        return np.array([_in_range(wanted), observed, trend], np.float32)

    def _ratio_of(self, left: float) -> float:
        """Return the ratio at which masks take `left` bits per weight, within the ratios that are aimed at."""
        return min(max(_read_ratio(left), MIN_RATIO), MAX_SIGNED_RATIO if self.signed else MAX_RATIO)


def _read_ratio(mask_bits: float) -> float:
    ratios, bits = rate_curve()
    return float(np.interp(mask_bits, bits, ratios))


def _read_bits(ratio: float) -> float:
    ratios, bits = rate_curve()
    return float(np.interp(ratio, ratios, bits))


def _in_range(scale: float) -> float:
    """Return the scale that noise can have which is closest to `scale`."""
    return float(np.clip(scale, 2 * MIN_ALPHA, MAX_ALPHA / 2))


def limited_scale(state: Float32Array, most: float) -> Float32Array:
    """Return the state of a rate control with a scale of at most `most`; weights that are all zero (0) limit none."""
    return state if most <= 0 or state[0] <= most else np.array([_in_range(most), *state[1:]], np.float32)


def least_mask_bits(count: int) -> float:
    """Return the bits per weight of the shortest masks of `count` weights that the control aims at.

    In a model of few weights an update is about as large as the weights themselves. The noise of a short mask is many
    times as large, and the model would learn nothing; and framing alone takes more bytes than such a mask could save.
    """
    return min(max(_read_bits(MIN_RATIO), 8 * LEAST_BYTES / count), _read_bits(MAX_RATIO))


def most_mask_bits(signed: bool) -> float:
    """Return the bits per weight of the longest masks that the control aims at."""
    return _read_bits(MAX_SIGNED_RATIO if signed else MAX_RATIO)


def error_power() -> float:
    """Return the power of 1 / bits in the squared error of masked noise, between the shortest and the longest masks.

    A mask m of noise n with the mean u has the squared error u (n - u), so that the error as a share of the update's
    squared norm falls as 1 / r.
    """
    return float(np.log(MAX_RATIO / MIN_RATIO) / np.log(_read_bits(MAX_RATIO) / _read_bits(MIN_RATIO)))


@cache
def rate_curve() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return ratios r, and the bits per weight of a mask at each of them, for Laplace updates under uniform noise.

    A bit is set if the update has the threshold's sign and exceeds it. The threshold is the product of two uniforms,
    whose density at t is -log t; the entropy of the bit is integrated over that density.
    """
    ratios = np.geomspace(1e-4, 10, 120)
    t = (np.arange(4000) + 0.5) / 4000
    t = t**3  # many nodes where thresholds are small
    weights = -np.log(t) * t ** (2 / 3)
    p = np.exp(-t / ratios[:, None]) / 2
    entropy = -(p * np.log2(np.maximum(p, 1e-300)) + (1 - p) * np.log2(1 - p))
    return ratios, entropy @ weights / weights.sum()


def mask_bits(budget: float, count: int, *, payload: float, body: float, framing: float = 0.0) -> tuple[float, float]:
    """Return what the rate control sets the noise's scale by.

    Args:
        budget: bits that a whole reply is to take.
        count: number of masked weights.
        payload: bytes of the payload.
        body: bytes of its body, the coded mask.
        framing: bytes that the transport adds.

    Returns:
        Bits per masked weight that the mask took, and those that the budget leaves to it, which may be negative.
    """
    spent, beside = 8 * body / count, 8 * (payload - body) / count + 8 * framing / count
    return float(spent), float(budget / count - beside)
