"""Randomised Hadamard rotation in blocks: random signs, then a fast Walsh-Hadamard transform.

Vargaftik et al. 2021, "DRIVE: One-bit Distributed Mean Estimation", section 5. A vector is cut into blocks of at most
`BLOCK` elements, so that a transform stays in cache. Where a block's length n is no power of two, the transform of size
2^floor(log2 n) is applied to its first elements and then, with new signs, to its last ones: two orthogonal maps that
overlap, so that nothing is ever padded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array
from fedmrn_app.noise import generate_noise

BLOCK = 1 << 16
_FACTOR = 6  # a transform is a few products with Hadamard matrices of at most 2^6 rows


def block_lengths(size: int) -> list[int]:
    """Lengths of the blocks that a vector of `size` elements is cut into, the shorter one last."""
    return [BLOCK] * (size // BLOCK) + ([size % BLOCK] if size % BLOCK else [])


def stretch_lengths(size: int) -> list[int]:
    """Lengths of the stretches of R x in which all coordinates have one distribution.

    They are the blocks, but for a last one of two windows: what the second window leaves out is a stretch of its own.
    """
    *whole, last = block_lengths(size)
    outside = last - (1 << (last.bit_length() - 1))
    return [*whole, outside, last - outside] if outside else [*whole, last]


def rotate(x: Float32Array, seed: int) -> Float32Array:
    """Return the rotated vector R x of shape (d,); R is orthogonal and follows from the 64-bit seed."""
    y = x.astype(np.float32)
    signs = _signs(seed, x.size)
    whole, rest = _split(y)
    if whole.size:
        whole *= signs[: whole.size].reshape(whole.shape)
        _transform(whole)
    for window, sign in _windows(rest, signs[whole.size :]):
        window *= sign
        _transform(window)
    return y


def rotate_back(y: Float32Array, seed: int) -> Float32Array:
    """Return R^-1 y, so that `rotate_back(rotate(x, seed), seed)` is x but for rounding."""
    x = y.astype(np.float32)
    signs = _signs(seed, y.size)
    whole, rest = _split(x)
    if whole.size:
        _transform(whole)
        whole *= signs[: whole.size].reshape(whole.shape)
    for window, sign in reversed(_windows(rest, signs[whole.size :])):
        _transform(window)
        window *= sign
    return x


def _signs(seed: int, size: int) -> Float32Array:
    """Signs for every element, and a second set for the overlap in the last block."""
    return generate_noise(seed, size + size % BLOCK, "bernoulli", 1.0)


def _split(y: Float32Array) -> tuple[Float32Array, Float32Array]:
    """Views of the whole blocks, (blocks, BLOCK), and of the rest."""
    end = y.size - y.size % BLOCK
    return y[:end].reshape(-1, BLOCK), y[end:]


def _windows(rest: Float32Array, signs: Float32Array) -> list[tuple[Float32Array, Float32Array]]:
    """The first and the last power-of-two window of the last block, each (1, 2^k), with their signs."""
    n = rest.size
    if n == 0:
        return []
    size = 1 << (n.bit_length() - 1)
    windows = [(rest[None, :size], signs[:size])]
    if size < n:
        windows.append((rest[None, n - size :], signs[n : n + size]))
    return windows


def _transform(blocks: Float32Array) -> None:
    """Apply the orthonormal Walsh-Hadamard transform to each row of `blocks` (rows, 2^k), in place."""
    rows, n = blocks.shape
    done = 1
    y: NDArray[np.float32] = blocks
    while done < n:
        size = min(1 << _FACTOR, n // done)
        y = np.matmul(_hadamard(size), y.reshape(rows * (n // (done * size)), size, done))
        done *= size
    blocks[:] = y.reshape(rows, n)


def _hadamard(size: int) -> Float32Array:
    """The orthonormal Hadamard matrix of Sylvester's order, (size, size)."""
    matrix: Float32Array = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    matrix /= np.sqrt(np.float32(size))
    return matrix
