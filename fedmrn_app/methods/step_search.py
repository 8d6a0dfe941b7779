"""The search for the step of a quantizer at which a size or an error comes out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fedmrn_app.kernels.level_tables import MAX_LEVEL
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.error_search import ErrorSearch, expected_octave
from fedmrn_app.methods.quantization import Quantization, UpdateQuantizer, root_mean_square
from fedmrn_app.wire.mask_model import stride

_SIZE_TOLERANCE = 0.015
_ROUGH = 0.15  # tolerance of the size while factors are chosen
SMALLEST = 1e-30  # updates with smaller elements are sent as zero
_SECANTS, _MAX_TRIALS = 6, 16
_ESTIMATES, _ROUGH_ESTIMATES = 8, 5
_FARTHEST = 3.0  # largest change of the logarithm of a step at once
_GROWTH = 1.08  # of a size's logarithm with that of the expected one, as in updates of CNNs and an LSTM
_EXACT = 1e-6  # error below which more bits gain nothing
_FINE = 1e-4  # error below which they gain nothing where at least half of it is in directions that are not sent
_ABSURD, _LONG = 4.0, 1 << 20  # times the wanted size, and bytes, above which an attempt is not worth its time
_SHORT = 1000  # bytes; what factors cost in ranks and lengths is not in the estimate of what they are worth


@dataclass(frozen=True)
class Aim:
    """What a search for a size is for.

    Attributes:
        wanted: the size to reach, in bytes.
        tolerance: difference of the logarithms at which an attempt is taken.
        finest: smallest step to try, with which the largest element has the largest level.
        enough: error at which an attempt of a smaller size is taken, or `_FINE` where at least half of the error is in
            directions that are not sent; negative for none.
        most: error above which a result is of no use, so that the search ends where a larger size has more.
    """

    wanted: float
    tolerance: float
    finest: float = 0.0
    enough: float = -1.0
    most: float = math.inf

    def away(self, found: Quantization) -> float:
        """Return the logarithm of the size over the wanted one."""
        return math.log(max(found.size, 1e-9) / self.wanted)

    def is_met(self, found: Quantization, away: float) -> bool:
        """Return whether no other attempt is needed after one that is `away`."""
        enough = max(self.enough, min(2 * found.rest, _FINE)) if self.enough > 0 else self.enough
        return abs(away) < self.tolerance or (away < 0 and found.error <= enough)

    def is_absurd(self, expected: float) -> bool:
        """Return whether a size that is expected is so far beyond the wanted one that an attempt would tell no more."""
        return expected > max(_ABSURD * self.wanted, _LONG)


def search(quantizer: UpdateQuantizer, *, error: float | None = None, size: float = 0.0) -> Quantization:
    """Return an update quantized with the step that comes closest to a size or an error.

    Args:
        quantizer: quantizes the update.
        error: squared error at the best length, as a share of the squared norm; None for a size.
        size: `Quantization.size`, in bytes.
    """
    x = quantizer.even
    rms = root_mean_square(x)
    if not rms > SMALLEST or not math.isfinite(rms):  # the server refuses a scale that is not finite
        return quantizer.zeros(0.0 if rms <= SMALLEST else math.nan)
    no_ranks = (0,) * len(quantizer.layout.shapes)
    finest = quantizer.finest(no_ranks)
    elements = partial(quantizer.at, ranks=no_ranks)
    if error is not None:
        octave = expected_octave(quantizer, error, rms, finest)
        found = ErrorSearch(quantizer.at, error, rms, finest, no_ranks).coarsest(octave)
        if quantizer.may_factor and found.sent < _SHORT:
            other = ErrorSearch(lambda step, _: elements(step), error, rms, finest, no_ranks).coarsest(octave)
            return min(found, other, key=lambda tried: (tried.scale == 0, tried.error > 1.01 * error, tried.sent))
        return found
    aim, start = Aim(size, _SIZE_TOLERANCE, finest, _EXACT), first_step(x, 8 * size / x.size)
    if not quantizer.may_factor:
        return closest(quantizer.at, aim, start)
    expected = quantizer.expected_size
    first = expected_step(expected, size, with_factors(start, 8 * size / x.size), _ROUGH_ESTIMATES, 0.02), start[1]
    found = closest(quantizer.at, replace(aim, tolerance=_ROUGH), first, _SECANTS, expected=expected)
    # another step may be worth other factors; with the same ones for all steps sizes are smooth in it
    chosen = found.ranks or no_ranks
    expected = partial(quantizer.expected_size, ranks=chosen)
    aim = replace(aim, finest=quantizer.finest(chosen))
    found = closest(partial(quantizer.at, ranks=chosen), aim, (found.step, start[1]), known=found, expected=expected)
    if found.ranks and found.size < _SHORT:
        other = closest(elements, replace(aim, most=found.error), start)
        sent = other.scale > 0 or found.scale == 0
        return other if sent and other.error < found.error else found
    return found


def first_step(x: Float32Array, bits: float) -> tuple[float, float]:
    """Return a step with which coded levels take about `bits` bits per weight, and the slope there; see `closest`."""
    sample = np.sort(np.abs(x[:: stride(x.size, 1 << 14)]))  # np.partition is slower where many elements are zero
    kept = min(0.5, bits / 5.5)  # share of nonzero levels
    place = min(sample.size - 1, int((1 - kept) * sample.size))
    step = float(sample[place]) / 0.75
    step *= 2.0 ** min(0.0, 2.75 - bits)  # a bit more halves the step, where few levels are zero
    return max(step, float(sample[-1]) / MAX_LEVEL, SMALLEST), -min(2.0, 0.2 + 1 / bits)


def with_factors(start: tuple[float, float], bits: float) -> tuple[float, float]:
    """Return about the step and the slope for an update that has factors, which take fewer bits than elements.

    Args:
        start: as `first_step` returns it.
        bits: size in bits per weight.
    """
    step, slope = start
    share = min(1.0, 0.42 * bits**-0.35)  # of the size without factors, as in updates of CNNs and an LSTM
    return step * share ** (-1 / slope), slope


def expected_step(
    expected: Callable[[float], float],
    wanted: float,
    start: tuple[float, float],
    trials: int = _ESTIMATES,
    tolerance: float = 0.003,
) -> float:
    """Return the step at which a size is expected.

    Args:
        expected: the expected size with a step, which costs little to compute.
        wanted: the size.
        start: as `first_step` returns it.
        trials: the largest number of expected sizes to compute.
        tolerance: difference of the logarithms at which a step is taken.
    """
    secant = Secant(*start)
    for _ in range(trials):
        away = math.log(max(expected(secant.step), 1e-9) / wanted)
        if abs(away) < tolerance:
            break
        secant.move(away)
    most = math.exp(_FARTHEST)
    return min(max(secant.step, start[0] / most), start[0] * most)


def closest(
    attempt: Callable[[float], Quantization],
    aim: Aim,
    start: tuple[float, float],
    trials: int = _MAX_TRIALS,
    known: Quantization | None = None,
    expected: Callable[[float], float] | None = None,
) -> Quantization:
    """Return the attempt with the measure that was wanted, or else the largest smaller one.

    An attempt that sends nothing is taken only if all do: with so few weights that the size has no room for a level,
    the reply is longer than wanted, because without an update the client would never be heard.

    Args:
        attempt: quantizes with a step.
        aim: the measure to reach.
        start: the first step, and how the logarithm of the measure changes with that of the step about there.
        trials: the largest number of attempts.
        known: the attempt with the first step, if it has been made.
        expected: about how large an attempt is, if it can be told before.
    """
    best, rank = None, (True, True, math.inf)
    for found, away in _approach(attempt, aim, start, trials, known, expected):
        own = found.scale == 0, away > aim.tolerance, abs(away)
        if best is None or own < rank:
            best, rank = found, own
        if found.scale != 0 and (aim.is_met(found, away) or (away > 0 and found.error > aim.most)):
            break
    assert best is not None
    return best


class Secant:
    """Steps that come closer to a wanted measure: secants, kept within what is known to enclose it.

    Attributes:
        step: the next step to try.
    """

    def __init__(self, step: float, slope: float) -> None:
        """Start at a step, with the change of the measure's logarithm with that of the step about there."""
        self.step, self._slope = step, slope
        self._moves = 0
        self._enclosed: dict[bool, tuple[float, float]] = {}  # by the sign: log step and how far away

    def move(self, away: float, expected_step: Callable[[], float] | None = None) -> None:
        """Choose the next step.

        Args:
            away: the logarithm of the measure at this step over the wanted one.
            expected_step: returns a step to take while the wanted measure is not enclosed.
        """
        at, before = math.log(self.step), self._enclosed.get(away > 0)
        self._enclosed[away > 0] = at, away
        self._moves += 1
        if len(self._enclosed) == 2:
            (low, under), (high, over) = self._enclosed[False], self._enclosed[True]
            # halves where secants are slow, as where all elements are about as large and vanish together
            share = min(max(under / (under - over), 0.1), 0.9) if self._moves <= _SECANTS else 0.5
            self.step = math.exp(low + share * (high - low))
            return
        if expected_step is not None:
            self.step = expected_step()
            return
        if before is not None and (away - before[1]) * (at - before[0]) * self._slope > 0:
            self._slope = (away - before[1]) / (at - before[0])
        # a bit too far, so that the next two enclose it
        self.step = math.exp(at - min(max(1.1 * away / self._slope, -_FARTHEST), _FARTHEST))


def _approach(
    attempt: Callable[[float], Quantization],
    aim: Aim,
    start: tuple[float, float],
    trials: int,
    known: Quantization | None,
    expected: Callable[[float], float] | None,
) -> Iterator[tuple[Quantization, float]]:
    """Yield attempts and how far away they are."""
    secant, step = Secant(*start), math.nan
    for trial in range(trials):
        secant.step, before = max(secant.step, aim.finest), step
        step = secant.step
        if step == before:  # the finest, and still too small
            return
        size, first = 0.0 if expected is None else expected(step), known if trial == 0 else None
        if first is None and aim.is_absurd(size) and trial + 1 < trials:
            secant.move(math.log(size / aim.wanted))
            continue
        found = first or attempt(step)
        away = aim.away(found)
        yield found, away
        if expected is None:
            secant.move(away)
        else:
            secant.move(away, partial(expected_step, expected, size * math.exp(-away / _GROWTH), (step, start[1])))
