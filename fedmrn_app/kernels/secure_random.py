"""Random numbers that other parties must not know: from the operating system, or from a seed for repeatable runs."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import needs_extra


def random_words(count: int, seed: int | None) -> NDArray[np.uint64]:
    """Return random words, uint64 (count,): from the operating system for None, from Philox for a 64-bit seed."""
    if seed is None:
        return np.frombuffer(os.urandom(8 * count), np.uint64)
    words: NDArray[np.uint64] = np.random.Philox(key=seed).random_raw(count)
    return words


def normals(count: int, seed: int | None) -> NDArray[np.float64]:
    """Return standard normal numbers, float64 (count,): the quantiles of probabilities in steps of 2^-53."""
    with needs_extra("privacy", "privacy"):
        from scipy.special import ndtri

    numbers: NDArray[np.float64] = ndtri(((random_words(count, seed) >> np.uint64(11)) + 0.5) * 2.0**-53)
    return numbers


def draw(probability: float, count: int, seed: int | None) -> NDArray[np.bool_]:
    """Return independent events, bool (count,), of one probability, which is rounded to steps of 2^-32."""
    halves = random_words(-(-count // 2), seed).view(np.uint32)[:count]
    events: NDArray[np.bool_] = halves < round(probability * 2.0**32)  # a Python int, because 2^32 does not fit uint32
    return events
