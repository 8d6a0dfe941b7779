"""Verdicts about many paired differences: better, worse, equivalent within a margin, or undecided."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import stdtr

from fedmrn_app.report.groups import Floats

BETTER, WORSE, EQUIVALENT, UNDECIDED = "better", "worse", "equivalent", "undecided"


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values that are adjusted for their number by the method of Holm (1979), at most 1 each."""
    order = np.argsort(values, kind="stable")
    adjusted, largest = [1.0] * len(values), 0.0
    for step, place in enumerate(order):
        largest = max(largest, (len(values) - step) * values[place])
        adjusted[place] = min(1.0, largest)
    return adjusted


def p_different(values: Floats) -> float:
    """Return the p-value of a mean of zero, by Student's t test with two sides; 1 for less than two values, or NaN."""
    if len(values) < 2 or not np.isfinite(values).all():
        return 1.0
    return 2 * _tail(values, 0.0) if values.mean() > 0 else 2 * _tail(-values, 0.0)


def p_beyond(values: Floats, margin: float) -> float:
    """Return the p-value of a mean that is at least a margin away from zero, by two one-sided t tests.

    A small value says that the mean is closer to zero than the margin (Schuirmann 1987); 1 for less
    than two values, or NaN.
    """
    if len(values) < 2 or not np.isfinite(values).all():
        return 1.0
    return max(_tail(values, -margin), _tail(-values, -margin))


def verdicts(differences: Sequence[Floats], margin: float, alpha: float) -> list[str]:
    """Return the verdict about each comparison, after Holm's correction over all of them.

    The correction is made once over the tests of a difference and once over those of equivalence, so that the chance
    of one wrong `better` or `worse` is at most alpha, and that of one wrong `equivalent` too. A difference that is
    shown to be smaller than the margin is `equivalent`, even if it is not zero. Comparisons without two common seeds
    count.

    Args:
        differences: of each comparison by seed, shape (seeds,), in the unit of the margin.
        margin: largest difference that counts as none.
        alpha: chance of a wrong verdict.
    """
    different = holm([p_different(values) for values in differences])
    beyond = holm([p_beyond(values, margin) for values in differences])
    return [
        EQUIVALENT if within <= alpha else UNDECIDED if apart > alpha else BETTER if values.mean() > 0 else WORSE
        for values, apart, within in zip(differences, different, beyond, strict=True)
    ]


def _tail(values: Floats, mean: float) -> float:
    """Return the chance of a mean as high as that of values if the true one is `mean`, by Student's t distribution."""
    spread = values.std(ddof=1) / np.sqrt(len(values))
    above = values.mean() - mean
    if spread == 0:
        return 0.0 if above > 0 else 1.0 if above < 0 else 0.5
    return float(stdtr(len(values) - 1, -above / spread))
