"""Uniform noise anywhere in a vector: NumPy's Philox-4x64-10 compiled, so that no vector of noise need be kept.

What it equals bit for bit: `generate_noise` in `noise.py`. Four words of 64 bits, one count of the generator, are eight
elements (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). The loops hold no lock of the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from fedmrn_app.kernels.mask_coder import FLOATS, compile_loop
from fedmrn_app.layout import Float32Array

ELEMENTS = 8  # that one count of the generator gives
_AT_ONCE = 1 << 12  # elements made at a time, so that temporaries stay in cache
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10


def fill_rows(seed: int, start: int, stride: int, scale: np.float32, out: Float32Array) -> None:
    """Fill `out` (rows, width): row r with the noise of elements start + r * stride and following."""
    _fill_rows()(np.uint64(seed), start, stride, scale * np.float32(2.0**-24), out)


def add_masked(
    seed: int, first: int, scale: np.float32, factors: NDArray[np.int8], share: np.float32, total: Float32Array
) -> None:
    """Add noise * factor * share, multiplied in this order, to `total` (n,) in place.

    Args:
        seed: of the noise.
        first: the element of the noise that belongs to the first of `total`.
        scale: of the noise.
        factors: -1, 0 or 1, int8 (n,).
        share: what all is multiplied by.
        total: float32 (n,).
    """
    if factors.size != total.size:
        raise ValueError(f"{factors.size} factors for {total.size} elements")
    _add_masked()(np.uint64(seed), first, scale * np.float32(2.0**-24), factors, share, total)


@intrinsic  # type: ignore[untyped-decorator]
def _high(_typing: Any, _a: Any, _b: Any) -> Any:
    """The upper 64 bits of a product of two words of 64 bits."""

    def generate(_context: Any, builder: Any, _signature: Any, words: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(words[0], wide), builder.zext(words[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _one_by_one(_typing: Any, _a: Any) -> Any:
    """The word itself, by no instruction: LLVM would put counts side by side, though products of 64 bits are not."""

    def generate(_context: Any, builder: Any, _signature: Any, words: Any) -> Any:
        word = ir.IntType(64)
        return builder.asm(ir.FunctionType(word, [word]), "", "=r,0", words, side_effect=True)

    return types.uint64(types.uint64), generate


@cache
def _fill_words() -> Callable[..., Any]:
    u32, u64 = np.uint32, np.uint64
    m0, m1 = (u64(m) for m in _MULTIPLIERS)
    step0, step1 = (u64(step) for step in _KEY_STEPS)
    zero, one, half, eight = u64(0), u64(1), u64(32), u64(ELEMENTS)

    @numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
    def fill(seed: Any, count: Any, words: Any) -> None:
        """The words of 32 bits from a count of the generator on, which NumPy raises before it uses it."""
        for i in range(words.size // ELEMENTS):
            c0, c1, c2, c3 = _one_by_one(u64(u64(count) + u64(i) + one)), zero, zero, zero
            key0, key1 = u64(seed), zero
            for _ in range(_ROUNDS):
                c0, c1, c2, c3 = (
                    u64(_high(m1, c2) ^ c1 ^ key0), u64(m1 * c2), u64(_high(m0, c0) ^ c3 ^ key1), u64(m0 * c0),
                )  # fmt: skip
                key0, key1 = u64(key0 + step0), u64(key1 + step1)
            at = u64(i) * eight
            words[at], words[at + u64(1)] = u32(c0), u32(c0 >> half)
            words[at + u64(2)], words[at + u64(3)] = u32(c1), u32(c1 >> half)
            words[at + u64(4)], words[at + u64(5)] = u32(c2), u32(c2 >> half)
            words[at + u64(6)], words[at + u64(7)] = u32(c3), u32(c3 >> half)

    compiled: Callable[..., Any] = fill
    return compiled


@cache
def _uniform() -> Callable[..., Any]:
    u32, i32, f32 = np.uint32, np.int32, np.float32
    offset = i32(1 - (1 << 24))

    @numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
    def uniform(word: Any, step: Any) -> Any:
        """As `_fill_uniform` in `noise.py`; `step` is the scale times 2^-24."""
        return f32(i32(i32((word >> u32(8)) << u32(1)) + offset)) * step

    compiled: Callable[..., Any] = uniform
    return compiled


@cache
def _fill_rows() -> Callable[..., Any]:
    fill_words, uniform = _fill_words(), _uniform()

    def fill(seed: Any, start: Any, stride: Any, step: Any, out: Any) -> None:
        rows, width = out.shape
        words = np.empty(_AT_ONCE, np.uint32)
        for row in range(rows):
            line = out[row]
            done = 0
            while done < width:
                element = start + row * stride + done
                skipped = element % ELEMENTS
                count = min(width - done, _AT_ONCE - skipped)
                needed = (skipped + count + ELEMENTS - 1) // ELEMENTS * ELEMENTS
                fill_words(seed, element // ELEMENTS, words[:needed])
                some, piece = words[skipped : skipped + count], line[done : done + count]
                for i in range(count):
                    piece[i] = uniform(some[i], step)
                done += count

    rows = types.Array(types.float32, 2, "C")
    return compile_loop(types.void(types.uint64, types.int64, types.int64, types.float32, rows), fill)


@cache
def _add_masked() -> Callable[..., Any]:
    fill_words, uniform, f32 = _fill_words(), _uniform(), np.float32

    def add(seed: Any, first: Any, step: Any, factors: Any, share: Any, total: Any) -> None:
        words = np.empty(_AT_ONCE, np.uint32)
        done = 0
        while done < total.size:
            element = first + done
            skipped = element % ELEMENTS
            count = min(total.size - done, _AT_ONCE - skipped)
            needed = (skipped + count + ELEMENTS - 1) // ELEMENTS * ELEMENTS
            fill_words(seed, element // ELEMENTS, words[:needed])
            some, factor, sums = words[skipped : skipped + count], factors[done : done + count], total[done:]
            for i in range(count):
                sums[i] += uniform(some[i], step) * f32(factor[i]) * share
            done += count

    factors = types.Array(types.int8, 1, "C", readonly=True)
    number = types.float32
    return compile_loop(types.void(types.uint64, types.int64, number, factors, number, FLOATS), add)
