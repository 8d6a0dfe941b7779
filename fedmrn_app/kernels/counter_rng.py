"""A counter-based random number generator: word i of a key is a hash of both, so any part of a vector can be drawn."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmrn_app.seeds import mix

_MASK = (1 << 32) - 1
MULTIPLIERS = (0x7FEB352D, 0x846CA68B)  # of lowbias32, the 32-bit hash with the least known bias (Wellons 2018)


def first_word(key: int, start: int = 0) -> tuple[int, int]:
    """Return the counter of word `start` of a 64-bit key, and the key's upper half: the two inputs of the hash."""
    return (start + key) & _MASK, key >> 32


def step_key(seed: int, step: int) -> int:
    """Return the 64-bit key of a local step, from a 64-bit seed."""
    return mix(seed ^ mix(step))


def known_key(seed: int) -> int:
    """Return the 64-bit key of the last draw, from the server's seed; the server can repeat that draw.

    Steps are counted from 1, and their keys derive from other seeds, so no other draw has this key.
    """
    return step_key(seed, 0)


def random_words(key: int, count: int, first: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """Return words `first` to `first + count` of a key, int64 (count,) in [0, 2^32).

    The lower half of the key is added to the counter, the upper half enters in the middle of the hash.
    """
    low, high = first_word(key)
    x = torch.arange(first + low, first + low + count, device=device) & _MASK
    x = (x ^ x >> 16) * MULTIPLIERS[0] & _MASK
    x ^= high
    x = (x ^ x >> 15) * MULTIPLIERS[1] & _MASK
    return x ^ x >> 16


def unit_floats(words: Tensor) -> Tensor:
    """Return the upper 24 bits of each word as float32 in [0, 1), exactly."""
    return (words >> 8).float() * 2.0**-24
