"""Randomized Hadamard rotation in blocks: random signs, then a fast Walsh-Hadamard transform.

Vargaftik et al. 2021, "DRIVE: One-bit Distributed Mean Estimation", section 5. A vector is cut into blocks of at most
`BLOCK` elements, so that a transform stays in cache. If the length n of a block is no power of two, the transform of
size 2^floor(log2 n) is applied to its first elements and then, with new signs, to its last ones. These are two
orthogonal maps that overlap, so nothing is padded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array
from fedmrn_app.noise import generate_noise

BLOCK = 1 << 16
_FACTOR = 6  # a transform is a few products with Hadamard matrices of at most 2^6 rows


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
    """Return views of the stretches of a rotated vector (d,), see `stretch_lengths`."""
    return np.split(rotated, np.cumsum(stretch_lengths(rotated.size))[:-1])


def rotate(x: Float32Array, seed: int) -> Float32Array:
    """Return the rotated vector R x, float32 (d,); R is orthogonal and follows from the 64-bit seed."""
    y = x.astype(np.float32)
    for window, signs in _windows(y, seed):
        window *= signs
        transform(window)
    return y


def rotate_back(y: Float32Array, seed: int) -> Float32Array:
    """Return R^-1 y, float32 (d,), so that `rotate_back(rotate(x, seed), seed)` is x up to rounding."""
    x = y.astype(np.float32)
    for window, signs in reversed(_windows(x, seed)):
        transform(window)
        window *= signs
    return x


def _windows(y: Float32Array, seed: int) -> list[tuple[Float32Array, Float32Array]]:
    """Return views of `y`, each (rows, 2^k), with their signs: the whole blocks, and both windows of a last block."""
    n = y.size % BLOCK
    end = y.size - n
    signs = generate_noise(seed, y.size + n, "bernoulli", 1.0)  # a second set for the overlap in the last block
    windows = [(y[:end].reshape(-1, BLOCK), signs[:end].reshape(-1, BLOCK))] if end else []
    if n:
        size = 1 << (n.bit_length() - 1)
        windows.append((y[None, end : end + size], signs[None, end : end + size]))
        if size < n:
            windows.append((y[None, y.size - size :], signs[None, end + n : end + n + size]))
    return windows


def transform(blocks: Float32Array) -> None:
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
    """Return the orthonormal Hadamard matrix in Sylvester's order, (size, size)."""
    matrix: Float32Array = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    matrix /= np.sqrt(np.float32(size))
    return matrix
