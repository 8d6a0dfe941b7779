"""The leading singular vectors of a matrix: all of a small one, and as many as are asked for of a large one.

A large matrix A is reduced to 64 directions at a time: those of A^T A times random ones (Halko, Martinsson and Tropp
2011, Algorithm 4.4, from the side of the columns). Each block takes three products with the matrix, so that an update
with few directions costs little. What is returned depends on the matrix and on how many vectors are asked for, and not
on what was asked before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array

Float64Array = NDArray[np.float64]

_GRAM = 512  # rows of the largest Gram matrix
_BLOCK, _BLOCKS = 64, 4  # random directions that are added at a time, and how often
_SURE = 0.75  # share of the directions whose vectors are taken; the last ones are not exact
_COLUMNS = 1 << 12  # of a part of a matrix that is widened to float64 at a time
_ZERO = 1e-12  # of the largest energy


@dataclass(eq=False)
class SingularVectors:
    """Some singular vectors, the leading ones first.

    Attributes:
        matrix: float32 (n, m).
        energies: squared singular values, float64 (k,).
        left: unit vectors, float32 (k, n).
    """

    matrix: Float32Array
    energies: Float64Array
    left: Float32Array
    _right: Float32Array | None = None

    @cached_property
    def scaled_left(self) -> Float32Array:
        """The left vectors times their singular values, float32 (k, n)."""
        return self.left * np.sqrt(self.energies, dtype=np.float32)[:, None]

    def right(self, count: int) -> Float32Array:
        """Return the first `count` right vectors times their singular values, float32 (count, m)."""
        if self._right is None:
            self._right = np.zeros((0, self.matrix.shape[1]), np.float32)
        known = len(self._right)
        if known < count:
            self._right = np.concatenate([self._right, self.left[known:count] @ self.matrix])
        return self._right[:count]


class Directions:
    """Finds the leading singular vectors of a matrix, float32 (n, m)."""

    def __init__(self, matrix: Float32Array, most: int) -> None:
        """Take a matrix that is finite and not zero, of which at most `most` vectors are of use."""
        self._matrix, self._most = matrix, most
        self._found: list[SingularVectors] = []
        self._large = min(matrix.shape) > _GRAM
        self._basis = np.zeros((matrix.shape[1], 0), np.float32)
        self._seen = np.zeros((0, len(matrix)), np.float32)  # the products of the matrix and the basis, transposed

    @property
    def all(self) -> SingularVectors | None:
        """All vectors of a small matrix, which are found at once; None for a large one."""
        return None if self._large else self.enough(lambda found: 0)

    def enough(self, count: Callable[[SingularVectors], int]) -> SingularVectors:
        """Return as many vectors as are needed.

        Args:
            count: returns the number of vectors that are of use, of those that are known.
        """
        number = 0
        while True:
            if number == len(self._found):
                self._found.append(self._next())
            found = self._found[number]
            known = len(self._basis.T[: (number + 1) * _BLOCK])
            if not self._large or number + 1 == _BLOCKS or len(found.energies) < min(known, self._most):
                return found
            if count(found) <= _SURE * known:
                return found
            number += 1

    def _next(self) -> SingularVectors:
        """Return vectors in one block of directions more than before, or all vectors of a small matrix."""
        matrix = self._matrix
        if not self._large:
            energies, left = _exact(matrix)
            return self._kept(energies, left, None)
        random = np.random.default_rng(len(self._found))
        block: Float32Array = matrix @ random.standard_normal((matrix.shape[1], _BLOCK), dtype=np.float32)
        block = self._orthonormal(matrix.T @ np.linalg.qr(block)[0])
        self._basis = np.concatenate([self._basis, block], axis=1)
        self._seen = np.concatenate([self._seen, (matrix @ block).T])
        energies, small = _exact(self._seen)
        singular = np.sqrt(np.where(energies > 0, energies, np.inf)).astype(np.float32)[:, None]
        left = small @ self._seen / singular
        return self._kept(energies, left, small @ self._basis.T * np.sqrt(energies, dtype=np.float32)[:, None])

    def _kept(self, energies: Float64Array, left: Float32Array, right: Float32Array | None) -> SingularVectors:
        count = int(np.count_nonzero(energies[: self._most] > _ZERO * energies[0])) if energies[0] > 0 else 0
        return SingularVectors(self._matrix, energies[:count], left[:count], None if right is None else right[:count])

    def _orthonormal(self, columns: Float32Array) -> Float32Array:
        """Return orthonormal columns of the same span beside that of the basis."""
        found: Float32Array = columns
        for _ in range(2 if self._basis.size else 1):  # what is left may be rounding errors, which point anywhere
            found = np.linalg.qr(found - self._basis @ (self._basis.T @ found))[0]
        return found


def _exact(matrix: Float32Array) -> tuple[Float64Array, Float32Array]:
    """Return the squared singular values, float64 (k,), and the left singular vectors, float32 (k, n)."""
    n, m = matrix.shape
    values, found = np.linalg.eigh(_gram(matrix if n <= m else matrix.T))
    energies = np.maximum(values[::-1], 0.0)
    vectors: Float32Array = np.ascontiguousarray(found.T[::-1], dtype=np.float32)
    if n <= m:
        return energies, vectors
    singular: Float32Array = np.sqrt(np.where(energies > 0, energies, np.inf)).astype(np.float32)
    return energies, vectors @ matrix.T / singular[:, None]


def _gram(matrix: Float32Array) -> Float64Array:
    """Return the inner products of the rows, float64 (n, n)."""
    gram = np.zeros((len(matrix), len(matrix)))
    for start in range(0, matrix.shape[1], _COLUMNS):
        part = matrix[:, start : start + _COLUMNS].astype(np.float64)
        gram += part @ part.T
    return gram
