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

from fedmrn_app.kernels.compiled import FLOATS, compile_loop
from fedmrn_app.layout import Float32Array

ELEMENTS = 8  # that one count of the generator gives
_AT_ONCE = 1 << 12  # elements made at a time, so that temporaries stay in cache
_ROUNDS = 10

# of compiled loops; what they call stands in the module, since they are kept on disk by what they close over
_U32, _U64, _I32, _F32 = np.uint32, np.uint64, np.int32, np.float32
_M0, _M1 = _U64(0xD2E7470EE14C6C93), _U64(0xCA5A826395121157)
_STEP0, _STEP1 = _U64(0x9E3779B97F4A7C15), _U64(0xBB67AE8584CAA73B)
_OFFSET = _I32(1 - (1 << 24))


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


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _fill_words(seed: Any, count: Any, words: Any) -> None:
    """The words of 32 bits from a count of the generator on, which NumPy raises before it uses it."""
    for i in range(words.size // ELEMENTS):
        c0, c1, c2, c3 = _one_by_one(_U64(_U64(count) + _U64(i) + _U64(1))), _U64(0), _U64(0), _U64(0)
        key0, key1 = _U64(seed), _U64(0)
        for _ in range(_ROUNDS):
            c0, c1, c2, c3 = (
                _U64(_high(_M1, c2) ^ c1 ^ key0), _U64(_M1 * c2), _U64(_high(_M0, c0) ^ c3 ^ key1), _U64(_M0 * c0),
            )  # fmt: skip
            key0, key1 = _U64(key0 + _STEP0), _U64(key1 + _STEP1)
        at = _U64(i) * _U64(ELEMENTS)
        words[at], words[at + _U64(1)] = _U32(c0), _U32(c0 >> _U64(32))
        words[at + _U64(2)], words[at + _U64(3)] = _U32(c1), _U32(c1 >> _U64(32))
        words[at + _U64(4)], words[at + _U64(5)] = _U32(c2), _U32(c2 >> _U64(32))
        words[at + _U64(6)], words[at + _U64(7)] = _U32(c3), _U32(c3 >> _U64(32))


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _uniform(word: Any, step: Any) -> Any:
    """As `_fill_uniform` in `noise.py`; `step` is the scale times 2^-24."""
    return _F32(_I32(_I32((word >> _U32(8)) << _U32(1)) + _OFFSET)) * step


@cache
def _fill_rows() -> Callable[..., Any]:
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
                _fill_words(seed, element // ELEMENTS, words[:needed])
                some, piece = words[skipped : skipped + count], line[done : done + count]
                for i in range(count):
                    piece[i] = _uniform(some[i], step)
                done += count

    rows = types.Array(types.float32, 2, "C")
    return compile_loop(types.void(types.uint64, types.int64, types.int64, types.float32, rows), fill)


@cache
def _add_masked() -> Callable[..., Any]:
    def add(seed: Any, first: Any, step: Any, factors: Any, share: Any, total: Any) -> None:
        words = np.empty(_AT_ONCE, np.uint32)
        done = 0
        while done < total.size:
            element = first + done
            skipped = element % ELEMENTS
            count = min(total.size - done, _AT_ONCE - skipped)
            needed = (skipped + count + ELEMENTS - 1) // ELEMENTS * ELEMENTS
            _fill_words(seed, element // ELEMENTS, words[:needed])
            some, factor, sums = words[skipped : skipped + count], factors[done : done + count], total[done:]
            for i in range(count):
                sums[i] += _uniform(some[i], step) * _F32(factor[i]) * share
            done += count

    factors = types.Array(types.int8, 1, "C", readonly=True)
    number = types.float32
    return compile_loop(types.void(types.uint64, types.int64, number, factors, number, FLOATS), add)
