"""The largest scale of noise that weights bear, for scales that clients set and for those of a budget of bits."""

from __future__ import annotations

import math

import numpy as np

from fedmrn_app.plugin.arrays import Values, Way, usual_ways

LIMIT = 2.0  # of the scale to the root mean square of the weights; with 1 or 4 some small apps learn less


def largest_scale(values: Values) -> float:
    """Return the limit of one scale for all masked tensors, from the root mean square of all their weights.

    Weights that are all zero have no limit.
    """
    ways = usual_ways(values)
    coded = [value for value, way in zip(values.values(), ways, strict=True) if way == Way.CODED]
    square = sum(float(np.square(value, dtype=np.float64).sum()) for value in coded)
    count = sum(value.size for value in coded)
    return LIMIT * math.sqrt(square / count) if square > 0 else math.inf
