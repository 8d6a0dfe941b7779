"""Random words by counting: the i-th word of a key is a hash of both, so any part of a vector can be drawn alone."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmrn_app.seeds import mix

_MASK = (1 << 32) - 1
_BLOCK = 1 << 14  # words made at a time, so that temporaries stay in cache
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


def known_key(seed: int) -> int:
    """The 64-bit key of the last draw, from the seed that the server gave: what is drawn with it is no secret to it.

    Steps are counted from 1, and their keys come from private seeds, so no other draw has this key.
    """
    return step_key(seed, 0)


def uniforms(key: int, count: int) -> NDArray[np.float32]:
    """`unit_floats` of the words 0 to `count` of a key, float32 (count,), by NumPy; all operations are exact."""
    low, high = split_key(key)
    out = np.empty(count, np.float32)
    for start in range(0, count, _BLOCK):
        part = out[start : start + _BLOCK]
        x = np.arange(part.size, dtype=np.uint32)
        x += np.uint32((start + low) & _MASK)
        x ^= x >> np.uint32(16)
        x *= np.uint32(MULTIPLIERS[0])
        x ^= np.uint32(high)
        x ^= x >> np.uint32(15)
        x *= np.uint32(MULTIPLIERS[1])
        x ^= x >> np.uint32(16)
        x >>= np.uint32(8)
        np.multiply(x.view(np.int32), np.float32(2.0**-24), out=part, dtype=np.float32, casting="unsafe")
    return out
