"""Random numbers that others must not know: from the operating system, or from a seed where runs are to be repeated."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray


def random_words(count: int, seed: int | None) -> NDArray[np.uint64]:
    """Independent random words, uint64 (count,): the operating system's for None, else Philox's for a 64-bit seed."""
    if seed is None:
        return np.frombuffer(os.urandom(8 * count), np.uint64)
    words: NDArray[np.uint64] = np.random.Philox(key=seed).random_raw(count)
    return words


def normals(count: int, seed: int | None) -> NDArray[np.float64]:
    """Independent standard normal numbers, float64 (count,), by the inverse of their distribution at 2^-53 steps."""
    from scipy.special import ndtri

    numbers: NDArray[np.float64] = ndtri(((random_words(count, seed) >> np.uint64(11)) + 0.5) * 2.0**-53)
    return numbers


def draw(probability: float, count: int, seed: int | None) -> NDArray[np.bool_]:
    """Independent events of one probability, in steps of 2^-32, bool (count,)."""
    halves = random_words(-(-count // 2), seed).view(np.uint32)[:count]
    events: NDArray[np.bool_] = halves < round(probability * 2.0**32)  # a Python number: 2^32 is one too
    return events
