"""Checksums of float32 arrays, which tell whether somebody has changed a value; each takes one pass over memory."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from fedmrn_app.kernels.compiled import compiled_at_first_call

_WORDS = types.Array(types.uint64, 1, "C")
_READ_ONLY_WORDS = types.Array(types.uint64, 1, "C", readonly=True)
_FACTOR = 0x9E3779B97F4A7C15  # odd, so that no word is lost
_LANES = (0xD1342543DE82EF95, 0xAF251AF3B0F025B5, 0xB564EF22EC7AECE5, 0xF7C2EBC08F67F2B5)


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _joined(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return one number of four sums; a word counts otherwise in each of them."""
    one, two, three, four = _LANES
    return a * np.uint64(one) + b * np.uint64(two) + c * np.uint64(three) + d * np.uint64(four)


@compiled_at_first_call(types.uint64(_READ_ONLY_WORDS))
def _sum_of(words: Any) -> Any:
    """Return four sums of words, uint64 (n,), in one number; each word counts by its place."""
    factor, shift = np.uint64(_FACTOR), np.uint64(29)
    a, b, c, d, whole = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0), words.size // 4 * 4
    for i in range(0, whole, 4):  # without the shift, changed signs would cancel
        a = a * factor + (words[i] ^ (words[i] >> shift))
        b = b * factor + (words[i + 1] ^ (words[i + 1] >> shift))
        c = c * factor + (words[i + 2] ^ (words[i + 2] >> shift))
        d = d * factor + (words[i + 3] ^ (words[i + 3] >> shift))
    for i in range(whole, words.size):
        a = a * factor + (words[i] ^ (words[i] >> shift))
    return _joined(a, b, c, d)


@compiled_at_first_call(types.uint64(_READ_ONLY_WORDS, _WORDS))
def _copy_and_sum(source: Any, target: Any) -> Any:
    """Copy words, uint64 (n,), and return what `_sum_of` does."""
    factor, shift = np.uint64(_FACTOR), np.uint64(29)
    a, b, c, d, whole = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0), source.size // 4 * 4
    for i in range(0, whole, 4):
        for j in range(4):
            target[i + j] = source[i + j]
        a = a * factor + (source[i] ^ (source[i] >> shift))
        b = b * factor + (source[i + 1] ^ (source[i + 1] >> shift))
        c = c * factor + (source[i + 2] ^ (source[i + 2] >> shift))
        d = d * factor + (source[i + 3] ^ (source[i + 3] >> shift))
    for i in range(whole, source.size):
        target[i] = source[i]
        a = a * factor + (source[i] ^ (source[i] >> shift))
    return _joined(a, b, c, d)


def checksum(values: NDArray[np.float32]) -> tuple[int, int]:
    """Return a checksum of values, float32 (n,) in one piece; one of 2^64 changes keeps it."""
    words, last = _words_of(values)
    return int(_sum_of(words if words.flags.aligned else words.copy())), last


def copy_with_checksum(source: NDArray[np.float32], target: NDArray[np.float32]) -> tuple[int, int]:
    """Copy values, float32 (n,) in one piece, and return their checksum."""
    (words, last), (to, _) = _words_of(source), _words_of(target)
    if not (words.flags.aligned and to.flags.aligned):
        np.copyto(target, source)
        return checksum(target)
    target[to.size * 2 :] = source[to.size * 2 :]
    return int(_copy_and_sum(words, to)), last


def _words_of(values: NDArray[np.float32]) -> tuple[NDArray[np.uint64], int]:
    """Return pairs of values as words, uint64 (n / 2,), and the bits of a last value that is in no pair, or else 0."""
    whole = values.size // 2 * 2
    return values[:whole].view(np.uint64), int(values[-1:].view(np.uint32)[0]) if values.size % 2 else 0
