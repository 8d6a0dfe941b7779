"""Confidence intervals over seeds."""

from __future__ import annotations

import numpy as np
from scipy.special import stdtrit

from fedmrn_app.report.groups import Floats, Group

_LEVEL = 0.95


def half_width(values: Floats) -> float:
    """Return half of the 95% confidence interval of a mean, by Student's t distribution.

    Args:
        values: two or more independent values, shape (n,), such as the results of n seeds.
    """
    quantile = stdtrit(len(values) - 1, (1 + _LEVEL) / 2)
    return float(quantile * values.std(ddof=1) / np.sqrt(len(values)))


def by_seed(group: Group, values: Floats) -> dict[int, float]:
    """Return the value of each seed in the order of the seeds; runs that repeat a seed count as one, by their mean.

    Args:
        group: the group.
        values: a value for each of its runs, shape (runs,).
    """
    found: dict[int, list[float]] = {}
    for seed, value in zip(group.seeds, values, strict=True):
        found.setdefault(seed, []).append(float(value))
    return {seed: float(np.mean(repeats)) for seed, repeats in found.items()}


def percent(group: Group, values: Floats) -> str:
    """Return the mean over seeds in percent, and half of its confidence interval if there are several seeds."""
    return spread(group, 100 * values, ".2f")


def spread(group: Group, values: Floats, form: str) -> str:
    """Return the mean over seeds, and half of its confidence interval if there are several seeds.

    Args:
        group: the group.
        values: a value for each of its runs, shape (runs,).
        form: format of the mean, such as `+.2f`; the half has no sign.
    """
    each = np.array(list(by_seed(group, values).values()))
    half = f" ± {half_width(each):{form.removeprefix('+')}}" if len(each) > 1 else ""
    return f"{each.mean():{form}}{half}"
