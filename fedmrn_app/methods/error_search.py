"""The search for the coarsest step of a quantizer at which the squared error is small enough.

    octaves of steps      ...  |-------|-------|-------|  ...        the same ones for every error that is asked for
    within an octave           |---|---|                             halved until the error is close to the wanted one
    where factors change         |->|                                those of the smaller step with coarser ones

What a search can try does not depend on the wanted error: all attempts are nodes of one tree, in which errors grow and
sizes fall from left to right. Where the ways of two searches part, that for the larger error turns to the right, so
that a larger error never has the longer body. A node whose size is not between those of its neighbours is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedmrn_app.methods.quantization import Quantization, Ranks, UpdateQuantizer

_TOLERANCE = 0.01  # of the error, on both sides
_HALVINGS = 12  # of an octave; where all elements are about as large, they vanish within a small part of one
_NARROW, _SHORTER, _BYTES = 2, 1.005, 1  # halvings after which a step is taken if the larger one is hardly shorter
_CHANGE, _FINER = 4, 6  # halvings of an octave, after which the factors stay, and of the next coarser steps


@dataclass(frozen=True)
class ErrorSearch:
    """A search among attempts to quantize an update.

    Attributes:
        attempt: quantizes with a step, and with the factors that are given or else worth sending.
        error: the wanted squared error, as a share of the squared norm.
        unit: a step; octaves begin at it, at its double, and so on.
        finest: the smallest step to try.
        no_factors: the ranks of an update without factors.
    """

    attempt: Callable[[float, Ranks | None], Quantization]
    error: float
    unit: float
    finest: float
    no_factors: Ranks

    def coarsest(self, octave: int) -> Quantization:
        """Return the attempt with the largest step whose error is at most about the wanted one.

        An attempt that sends nothing is not taken, and if the finest step has a larger error, its attempt is returned.

        Args:
            octave: the octave to begin with, counted from the unit.
        """
        lower, upper = self._at(octave), None
        while self._is_fine(lower) and not self._is_met(lower):
            upper = self._at(octave + 1)
            if not self._is_fine(upper):
                break
            octave, lower, upper = octave + 1, upper, None
        while not self._is_fine(lower) and lower.step > self.finest:
            octave, lower, upper = octave - 1, self._at(octave - 1), lower
        if upper is None or not self._is_fine(lower):
            return lower
        return self._within(octave, lower, upper)

    def _within(self, octave: int, lower: Quantization, upper: Quantization) -> Quantization:
        """Return the attempt of an octave, whose lower end is fine enough and whose upper end is not."""
        start, width, least = float(octave), 1.0, upper.sent
        for halving in range(_HALVINGS):
            if self._is_met(lower) or (halving >= _NARROW and lower.sent <= _SHORTER * upper.sent + _BYTES):
                break
            if halving == _CHANGE and lower.ranks != upper.ranks:
                return self._with_factors(lower, least)
            width /= 2
            middle = self._at(start + width)
            if self._is_fine(middle) and least <= middle.sent <= lower.sent:
                start, lower = start + width, middle
            else:
                upper = middle
                least = max(least, middle.sent) if middle.sent <= lower.sent else least
        return lower

    def _with_factors(self, found: Quantization, least: int) -> Quantization:
        """Return the attempt with the factors of another one and the largest step, within an octave, that is fine.

        Args:
            found: an attempt that is fine enough.
            least: the smallest size that the result can have.
        """
        ranks, step = found.ranks or self.no_factors, found.step
        for halving in range(_FINER):
            if self._is_met(found):
                break
            middle = self.attempt(step * 2.0**0.5 ** (halving + 1), ranks)
            if self._is_fine(middle) and least <= middle.sent <= found.sent:
                found, step = middle, middle.step
            else:
                least = max(least, middle.sent) if middle.sent <= found.sent else least
        return found

    def _at(self, octaves: float) -> Quantization:
        return self.attempt(max(self.unit * 2.0**octaves, self.finest), None)

    def _is_fine(self, found: Quantization) -> bool:
        return found.scale > 0 and found.error <= self.error * (1 + _TOLERANCE)

    def _is_met(self, found: Quantization) -> bool:
        return self._is_fine(found) and found.error >= self.error * (1 - _TOLERANCE)


def expected_octave(quantizer: UpdateQuantizer, error: float, unit: float, finest: float) -> int:
    """Return the octave of steps in which an error is expected, counted from the unit, a step."""
    low = math.floor(math.log2(finest / unit))
    high = math.ceil(math.log2(quantizer.norm / unit)) + 1  # no element is larger than the norm
    while high - low > 1:
        middle = (low + high) // 2
        if quantizer.expected_error(unit * 2.0**middle) <= error:
            low = middle
        else:
            high = middle
    return low
