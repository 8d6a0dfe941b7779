"""Uniform noise at any place of a vector, compiled, so that no vector of noise has to be kept.

    element i of the noise  <--  32-bit word i mod 8 of counter i // 8  <--  Philox-4x64-10 with the seed as key

Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3". It equals `generate_noise` in `noise.py` bit for bit.
The loops do not hold Python's interpreter lock.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from fedmrn_app.kernels.compiled import FLOAT_ROWS, FLOATS, compiled_at_first_call
from fedmrn_app.layout import Float32Array

ELEMENTS = 8  # elements per counter: four words of 64 bits
_BLOCK = 1 << 12  # elements made at a time, so that temporaries stay in cache
_ROUNDS = 10

_U32, _U64, _I32, _F32 = np.uint32, np.uint64, np.int32, np.float32
_M0, _M1 = _U64(0xD2E7470EE14C6C93), _U64(0xCA5A826395121157)
_STEP0, _STEP1 = _U64(0x9E3779B97F4A7C15), _U64(0xBB67AE8584CAA73B)
_OFFSET = _I32(1 - (1 << 24))


def fill_rows(seed: int, start: int, stride: int, scale: np.float32, out: Float32Array) -> None:
    """Fill `out` (rows, width): row r with the noise from element start + r * stride on."""
    _fill_rows(np.uint64(seed), start, stride, scale * np.float32(2.0**-24), out)


def add_masked(
    seed: int, first: int, scale: np.float32, factors: NDArray[np.int8], weight: np.float32, total: Float32Array
) -> None:
    """Add noise * factor * weight, multiplied in this order, to `total` in place.

    Args:
        seed: the 64-bit seed of the noise.
        first: the element of the noise that belongs to the first of `total`.
        scale: the scale of the noise.
        factors: -1, 0 or 1, int8 (n,).
        weight: the factor of all elements.
        total: float32 (n,).

    Raises:
        ValueError: `factors` and `total` differ in size.
    """
    if factors.size != total.size:
        raise ValueError(f"{factors.size} factors for {total.size} elements")
    _add_masked(np.uint64(seed), first, scale * np.float32(2.0**-24), factors, weight, total)


@intrinsic  # type: ignore[untyped-decorator]
def _high(_typing: Any, _a: Any, _b: Any) -> Any:
    """Return the upper 64 bits of the product of two 64-bit words."""

    def generate(_context: Any, builder: Any, _signature: Any, words: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(words[0], wide), builder.zext(words[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _not_vectorized(_typing: Any, _a: Any) -> Any:
    """Return the word itself; it stops LLVM from vectorizing over counters, for which CPUs have no 64-bit product."""

    def generate(_context: Any, builder: Any, _signature: Any, words: Any) -> Any:
        word = ir.IntType(64)
        return builder.asm(ir.FunctionType(word, [word]), "", "=r,0", words, side_effect=True)

    return types.uint64(types.uint64), generate


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _fill_words(seed: Any, counter: Any, words: Any) -> None:
    """Fill with 32-bit words from a counter of the generator on; NumPy increments the counter before it is used."""
    for i in range(words.size // ELEMENTS):
        c0, c1, c2, c3 = _not_vectorized(_U64(_U64(counter) + _U64(i) + _U64(1))), _U64(0), _U64(0), _U64(0)
        key0, key1 = _U64(seed), _U64(0)
        for _ in range(_ROUNDS):
            c0, c1, c2, c3 = (
                _U64(_high(_M1, c2) ^ c1 ^ key0), _U64(_M1 * c2), _U64(_high(_M0, c0) ^ c3 ^ key1), _U64(_M0 * c0),
            )  # fmt: skip
            key0, key1 = _U64(key0 + _STEP0), _U64(key1 + _STEP1)
        j = _U64(i) * _U64(ELEMENTS)
        words[j], words[j + _U64(1)] = _U32(c0), _U32(c0 >> _U64(32))
        words[j + _U64(2)], words[j + _U64(3)] = _U32(c1), _U32(c1 >> _U64(32))
        words[j + _U64(4)], words[j + _U64(5)] = _U32(c2), _U32(c2 >> _U64(32))
        words[j + _U64(6)], words[j + _U64(7)] = _U32(c3), _U32(c3 >> _U64(32))


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _uniform(word: Any, step: Any) -> Any:
    """Return the noise of a 32-bit word, as `_fill_uniform` in `noise.py` does; `step` is the scale times 2^-24."""
    return _F32(_I32(_I32((word >> _U32(8)) << _U32(1)) + _OFFSET)) * step


@compiled_at_first_call(types.void(types.uint64, types.int64, types.int64, types.float32, FLOAT_ROWS))
def _fill_rows(seed: Any, start: Any, stride: Any, step: Any, out: Any) -> None:
    rows, width = out.shape
    words = np.empty(_BLOCK, np.uint32)
    for row in range(rows):
        line = out[row]
        done = 0
        while done < width:
            element = start + row * stride + done
            skipped = element % ELEMENTS
            count = min(width - done, _BLOCK - skipped)
            needed = (skipped + count + ELEMENTS - 1) // ELEMENTS * ELEMENTS
            _fill_words(seed, element // ELEMENTS, words[:needed])
            some, piece = words[skipped : skipped + count], line[done : done + count]
            for i in range(count):
                piece[i] = _uniform(some[i], step)
            done += count


@compiled_at_first_call(
    types.void(
        types.uint64, types.int64, types.float32, types.Array(types.int8, 1, "C", readonly=True), types.float32, FLOATS
    )
)
def _add_masked(seed: Any, first: Any, step: Any, factors: Any, weight: Any, total: Any) -> None:
    words = np.empty(_BLOCK, np.uint32)
    done = 0
    while done < total.size:
        element = first + done
        skipped = element % ELEMENTS
        count = min(total.size - done, _BLOCK - skipped)
        needed = (skipped + count + ELEMENTS - 1) // ELEMENTS * ELEMENTS
        _fill_words(seed, element // ELEMENTS, words[:needed])
        some, factor, sums = words[skipped : skipped + count], factors[done : done + count], total[done:]
        for i in range(count):
            sums[i] += _uniform(some[i], step) * _F32(factor[i]) * weight
        done += count
