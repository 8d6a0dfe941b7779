"""Pruning on CPUs: the least |w| that is kept is found among the few that a sample says it must be among.

As integers the bits of |w| are in the order of |w|. Numba compiles the loops over all weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import types
from numpy.typing import NDArray
from torch import Tensor

from fedmrn_app.kernels.compiled import FLOATS, compile_loop

MAGNITUDE = 0x7FFFFFFF  # all bits but the sign's
LEAST_NORMAL, INFINITE = 0x00800000, 0x7F800000  # |w| of these bits
STRIDE = 61  # one weight in so many is in the sample; prime, so that it goes through all columns of a matrix
DEVIATIONS = 3  # how far from the sample's rank the true one is believed to be, in standard deviations
SHARE = 16  # one in so many may be looked at closely
BLOCK = 1 << 12  # weights that stay in cache

Bits = NDArray[np.int32]

_BITS, _FLAGS = types.Array(types.int32, 1, "C"), types.Array(types.uint8, 1, "C")
_WORDS = types.Array(types.uint64, 1, "C")
_COLLECT = types.UniTuple(types.int64, 2)(_BITS, types.int32, types.int32, _FLAGS, _WORDS, _BITS)


class CPUPruner:
    """Equals `PlainPruner` bit for bit. Where that chooses among equal |w|, it is asked."""

    def __init__(self, weights: Tensor) -> None:
        self._weights = weights
        self._array = weights.numpy()
        self._bits = self._array.view(np.int32)
        self._kept = np.empty(weights.numel(), np.uint8)
        self._flags = np.empty(BLOCK, np.uint8)
        self._close = np.empty(weights.numel() // SHARE + BLOCK, np.int32)
        self._pruned = False

    def prune(self, count: int) -> None:
        """See `Pruner`."""
        least = self._least_kept(count)
        if least is None:
            kept = torch.topk(self._weights.abs(), count, sorted=False).indices.numpy()
            self._kept.fill(0)
            self._kept[kept] = 1
            _compile_apply()(self._array, self._kept)
        else:
            _compile_prune()(self._bits, self._kept, least)
        self._pruned = True

    def apply(self) -> None:
        """See `Pruner`."""
        if self._pruned:
            _compile_apply()(self._array, self._kept)

    def _least_kept(self, count: int) -> np.int32 | None:
        """The bits of the least |w| among the `count` largest; None if there are equal ones that are not kept.

        Numbers that arithmetic may take for zero, and what is not a number, are equal in more than their bits.
        """
        found = self._search_near(count)
        if found is None:
            magnitudes = self._bits & np.int32(MAGNITUDE)
            magnitudes = magnitudes[magnitudes >= LEAST_NORMAL]  # selection is slow where most are zero
            if magnitudes.size < count:
                return None
            found = _select(magnitudes, count)
        least, kept = found
        return least if kept == count and LEAST_NORMAL <= least <= INFINITE else None

    def _search_near(self, count: int) -> tuple[np.int32, int] | None:
        """As `_select`; None where the sample misleads."""
        sample = self._bits[::STRIDE] & np.int32(MAGNITUDE)
        share = count / self._bits.size
        expected, margin = share * sample.size, DEVIATIONS * (share * (1 - share) * sample.size) ** 0.5 + 2
        above, below = int(expected - margin), int(expected + margin)  # of the sample, beyond either bound
        if above < 1 or below > sample.size - 1:
            return None
        ranks = sample.size - below, sample.size - above
        sample.partition(ranks)
        low, high = max(int(sample[ranks[0]]), LEAST_NORMAL), int(sample[ranks[1]])
        if high < low:
            return None
        flags = self._flags
        larger, inside = _compile_collect()(self._bits, low, high, flags, flags.view(np.uint64), self._close)
        if not larger < count <= larger + inside:
            return None
        least, kept = _select(self._close[:inside], count - larger)
        return least, larger + kept


def _select(magnitudes: Bits, count: int) -> tuple[np.int32, int]:
    """The `count`-th largest, and how many are as large; `magnitudes` is put in another order."""
    rank = magnitudes.size - count
    magnitudes.partition(rank)
    least: np.int32 = magnitudes[rank]
    return least, count + int(np.count_nonzero(magnitudes[:rank] == least))


@cache
def _compile_collect() -> Callable[..., tuple[int, int]]:
    u8, i32, u32, magnitude = np.uint8, np.int32, np.uint32, np.int32(MAGNITUDE)

    def collect(bits: Any, low: Any, high: Any, flags: Any, words: Any, out: Any) -> Any:
        """Copy what is within the bounds; return how many are above and how many within, -1 if there is no room.

        Flags, read eight at a time as `words`, say of each block what is within.
        """
        width = u32(high - low)
        larger, inside = 0, 0
        for start in range(0, bits.size, BLOCK):
            block = bits[start : start + BLOCK]
            above = i32(0)
            for i in range(block.size):
                size = i32(block[i] & magnitude)
                flags[i] = u8(u32(size - low) <= width)
                above = i32(above + i32(size > high))
            larger += int(above)
            if inside + block.size > out.size:
                return larger, -1
            whole = block.size // 8
            for word in range(whole):
                if words[word] != 0:
                    for i in range(8):
                        out[inside] = block[8 * word + i] & magnitude
                        inside += flags[8 * word + i]
            for i in range(8 * whole, block.size):
                out[inside] = block[i] & magnitude
                inside += flags[i]
        return larger, inside

    return compile_loop(_COLLECT, collect)


@cache
def _compile_prune() -> Callable[..., None]:
    u8, i32, magnitude = np.uint8, np.int32, np.int32(MAGNITUDE)

    def prune(bits: Any, flags: Any, least: Any) -> None:
        """Flag what is kept, and leave but the sign of the rest, as multiplying by zero does."""
        for i in range(bits.size):
            word = bits[i]
            kept = (word & magnitude) >= least
            flags[i] = u8(kept)
            bits[i] = word if kept else i32(word & ~magnitude)

    return compile_loop(types.void(_BITS, _FLAGS, types.int32), prune)


@cache
def _compile_apply() -> Callable[..., None]:
    f32 = np.float32

    def apply(weights: Any, flags: Any) -> None:
        for i in range(weights.size):
            weights[i] = weights[i] * f32(flags[i])

    return compile_loop(types.void(FLOATS, _FLAGS), apply)
