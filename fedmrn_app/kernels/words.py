"""Random words by counting: the i-th word of a key is a hash of both, so any part of a vector can be drawn alone."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmrn_app.seeds import mix

_MASK = (1 << 32) - 1
MULTIPLIERS = (0x7FEB352D, 0x846CA68B)  # of the 32-bit hash with the least bias known (Wellons 2018, lowbias32)


def split_key(key: int) -> tuple[int, int]:
    """The low and the high half of a 64-bit key."""
    return key & _MASK, key >> 32


def step_key(seed: int, step: int) -> int:
    """The 64-bit key of a local step, from a 64-bit seed."""
    return mix(seed ^ mix(step))


def random_words(key: int, count: int, first: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """Return words `first` to `first + count` of a key, int64 (count,) in [0, 2^32).

    The low half of the key shifts the count, the high half enters in the middle of the hash.
    """
    low, high = split_key(key)
    x = torch.arange(first + low, first + low + count, device=device) & _MASK
    x = (x ^ x >> 16) * MULTIPLIERS[0] & _MASK
    x ^= high
    x = (x ^ x >> 15) * MULTIPLIERS[1] & _MASK
    return x ^ x >> 16


def unit_floats(words: Tensor) -> Tensor:
    """The upper 24 bits of each word as float32 in [0, 1), exactly."""
    return (words >> 8).float() * 2.0**-24
