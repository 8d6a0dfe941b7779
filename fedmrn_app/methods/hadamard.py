"""Randomized Hadamard rotation in blocks: random signs, then a fast Walsh-Hadamard transform.

Vargaftik et al. 2021, "DRIVE: One-bit Distributed Mean Estimation", section 5. A vector is cut into blocks of at most
`BLOCK` elements, so that a transform stays in cache. If the length n of a block is no power of two, the transform of
size 2^floor(log2 n) is applied to its first elements and then, with new signs, to its last ones. These are two
orthogonal maps that overlap, so nothing is padded.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.kernels.signs import multiply_by_signs
from fedmrn_app.kernels.walsh_hadamard import walsh_hadamard
from fedmrn_app.layout import Float32Array
from fedmrn_app.noise import noise_signs

BLOCK = 1 << 16


def block_lengths(size: int) -> list[int]:
    """Return the lengths of the blocks of a vector of `size` elements, the shorter one last."""
    return [BLOCK] * (size // BLOCK) + ([size % BLOCK] if size % BLOCK else [])


def stretch_lengths(size: int) -> list[int]:
    """Return the lengths of the stretches of R x in which all coordinates have one distribution.

    Each block is a stretch, except for a last block of two windows: the elements outside its second window are a
    stretch of their own.
    """
    lengths = block_lengths(size)
    last = size % BLOCK
    outside = last - (1 << (last.bit_length() - 1)) if last else 0
    return [*lengths[:-1], outside, last - outside] if outside else lengths


def stretches_of(rotated: Float32Array) -> list[Float32Array]:
    """Return views of the stretches of a rotated vector (d,) or of one of its blocks, see `stretch_lengths`."""
    return np.split(rotated, np.cumsum(stretch_lengths(rotated.size))[:-1])


def rotate(x: Float32Array, seed: int) -> Float32Array:
    """Return the rotated vector R x, float32 (d,); R is orthogonal and follows from the 64-bit seed."""
    return np.concatenate([np.empty(0, np.float32), *rotated_blocks(x, seed)])


def rotated_blocks(x: Float32Array, seed: int) -> Iterator[Float32Array]:
    """Yield the blocks of R x in their order, each in new memory."""
    for start in range(0, x.size, BLOCK):
        y = x[start : start + BLOCK].astype(np.float32)
        windows = [*_blocks(y, seed, start), *_last_windows(y, seed, start)]
        for window, signs in windows:
            multiply_by_signs(window, signs)
            walsh_hadamard(window[None])
        yield y


def rotate_back(y: Float32Array, seed: int) -> Float32Array:
    """Return R^-1 y, float32 (d,), so that `rotate_back(rotate(x, seed), seed)` is x up to rounding."""
    x = y.astype(np.float32)
    rotate_back_in_place(x, seed)
    return x


def rotate_back_in_place(y: Float32Array, seed: int, first: int = 0, count: int | None = None) -> None:
    """Replace y by R^-1 y, or a part of y by the same part of R^-1 y.

    Args:
        y: float32; with `first` and `count` the elements of a vector from `first` on: whole blocks, or all to its end.
        seed: of R.
        first: a multiple of `BLOCK`.
        count: number of elements of the whole vector.
    """
    count = first + y.size if count is None else count
    for window, signs in _blocks(y, seed, first):
        walsh_hadamard(window[None])
        multiply_by_signs(window, signs)
    if first + y.size == count:
        for window, signs in reversed(_last_windows(y, seed, first)):
            walsh_hadamard(window[None])
            multiply_by_signs(window, signs)


def _blocks(y: Float32Array, seed: int, first: int = 0) -> Iterator[tuple[Float32Array, NDArray[np.uint8]]]:
    """Yield views of the whole blocks of `y`, each (BLOCK,), with their signs as bits.

    Args:
        y: the elements of a vector from `first` on.
        seed: of the signs.
        first: a multiple of `BLOCK`.
    """
    for start in range(0, y.size - BLOCK + 1, BLOCK):
        yield y[start : start + BLOCK], noise_signs(seed, first + start + BLOCK, first + start)


def _last_windows(y: Float32Array, seed: int, first: int = 0) -> list[tuple[Float32Array, NDArray[np.uint8]]]:
    """Return views of both windows of a last block of `y`, each (2^k,), with their signs as bits.

    Args:
        y: the elements of a vector from `first` on, to its end.
        seed: of the signs.
        first: a multiple of `BLOCK`.
    """
    n = y.size % BLOCK
    if not n:
        return []
    end, size = y.size - n, 1 << (n.bit_length() - 1)
    signs = noise_signs(seed, first + y.size + n, first + end)  # a second set for the overlap
    lower = y[end : end + size], signs
    if size == n:
        return [lower]
    upper = np.unpackbits(signs, bitorder="little")[n : n + size]
    return [lower, (y[y.size - size :], np.packbits(upper, bitorder="little"))]
