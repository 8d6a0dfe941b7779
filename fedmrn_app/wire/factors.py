"""Matrices as sums of a few products of two vectors.

    matrix (n, m), a row per output  ~  sum over k of  outer(left_k, right_k) / norm2(left_k)

Local training changes a layer in few directions: the gradients of its outputs lie in a small space. The leading
singular vectors therefore hold most of an update's energy in far fewer numbers than the matrix has (Wang et al. 2018,
"ATOMO"; Vogels et al. 2019, "PowerSGD", section 3). Both vectors of a product are in the units of the matrix, with
norms near its singular value, so that one step of a quantizer costs each of their elements the same squared error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.kernels.level_tables import MAX_LEVEL
from fedmrn_app.kernels.row_counts import row_bits, row_costs, row_counts
from fedmrn_app.layout import Float32Array, Shape

Float64Array = NDArray[np.float64]

MAX_RANK = 255
_GRAM = 512  # rows of the largest Gram matrix
_DIRECTIONS = 256  # random ones, to which larger matrices are reduced
_COLUMNS = 1 << 12  # of a part of a matrix that is widened to float64 at a time
_LEAST = 0.05  # of a squared step: components with less energy per element are never tried
_RIDGE = 1e-3  # of rows of norm 1, which can be equal once they are quantized
# of the estimate of what a quantized vector costs; chosen so that what it prefers is shorter on kept updates
_SMALL, _LOST = 0.64, 0.07  # elements below are zero; the squared error of others, both in steps
_SIZE_BITS, _OCTAVE_BITS = 1.5, 1.2  # of a level of 1, its sign included, and of each octave above
_CODED = 0.95  # bits of coded levels over their entropy row by row, as in updates of CNNs and an LSTM


@dataclass(eq=False)
class Spectrum:
    """The singular vectors of a matrix (n, m), the leading ones first.

    Attributes:
        matrix: float32 (n, m).
        energies: squared singular values, float64 (k,).
        left: unit vectors, float32 (k, n).
    """

    matrix: Float32Array
    energies: Float64Array
    left: Float32Array
    _scaled: Float32Array = field(init=False, repr=False)
    _right: Float32Array = field(init=False, repr=False)
    _square: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._scaled = self.left * np.sqrt(self.energies, dtype=np.float32)[:, None]
        self._right = np.zeros((0, self.matrix.shape[1]), np.float32)
        self._square = float(np.square(self.matrix, dtype=np.float64).sum())

    def right(self, count: int) -> Float32Array:
        """Return the first `count` right vectors times their singular values, float32 (count, m)."""
        known = len(self._right)
        if known < count:
            self._right = np.concatenate([self._right, self.left[known:count] @ self.matrix])
        return self._right[:count]

    def scaled_left(self, count: int) -> Float32Array:
        """Return the first `count` left vectors times their singular values, float32 (count, n)."""
        return self._scaled[:count]

    def _largest(self, count: int) -> float:
        """Return the largest element of the first `count` vectors, scaled as they are sent."""
        return max(float(np.abs(rows).max()) for rows in (self.scaled_left(count), self.right(count)))

    def rank(self, step: float, price: float) -> int:
        """Return how many products are worth sending; 0 where the elements themselves are cheaper.

        A product is worth its price if the squared error that quantization leaves of it, plus the price of its bits, is
        less than its energy. Bits are estimated by the entropy of which elements are zero, row by row.

        Args:
            step: step of the quantizer.
            price: price of a bit, as a share of the squared step.
        """
        energies = self.energies / step**2
        tried = int(np.count_nonzero(energies[: largest_rank(self.matrix.shape)] > _LEAST * max(self.matrix.shape)))
        if tried == 0:
            return 0
        if energies[0] > MAX_LEVEL**2 and self._largest(tried) > MAX_LEVEL * step:  # no element is above its vector
            return 0
        costs = _cost(self.scaled_left(tried), step, price)
        costs += _cost(self.right(tried), step, price)
        worth = np.flatnonzero(costs < energies[:tried])
        if worth.size == 0:
            return 0
        rank = int(worth[-1]) + 1
        factored = costs[:rank].sum() + max(self._square / step**2 - float(energies[:rank].sum()), 0.0)
        return rank if factored < _cost(self.matrix, step, price).sum() else 0

    def expected_bits(self, step: float, rank: int) -> float:
        """Return about how many bits the matrix takes as `rank` products, or as elements for 0."""
        if rank == 0:
            return expected_bits(self.matrix, step)
        return expected_bits(self.scaled_left(rank), step) + expected_bits(self.right(rank), step)

    def expected_loss(self, step: float, rank: int) -> float:
        """Return about the squared error of the matrix as `rank` products, or as elements for 0."""
        if rank == 0:
            return expected_loss(self.matrix, step)
        rest = max(self._square - float(self.energies[:rank].sum()), 0.0)
        return rest + expected_loss(self.scaled_left(rank), step) + expected_loss(self.right(rank), step)


def expected_loss(rows: Float32Array, step: float) -> float:
    """Return about the squared error of quantized rows, float32 (k, n)."""
    counts = row_counts(rows, _SMALL * step, step)
    return float(counts.lost.sum() + _LOST * step**2 * counts.kept.sum())


def expected_bits(rows: Float32Array, step: float) -> float:
    """Return about how many bits quantized rows take, float32 (k, n).

    They are the entropy of which elements are zero, of the signs, and of levels with a geometric distribution, row by
    row. The number of products follows from another estimate, `_cost`.
    """
    return _CODED * row_bits(rows, _SMALL * step, step)


def spectrum(matrix: Float32Array) -> Spectrum | None:
    """Return the singular vectors of a matrix, float32 (n, m), or None.

    A matrix has none if it is too small for factors, zero, or not finite.
    """
    most = largest_rank(matrix.shape)
    if most == 0 or not np.isfinite(matrix).all():
        return None
    vectors, energies = _leading(matrix)
    count = int(np.count_nonzero(energies[:most] > 1e-12 * energies[0])) if energies[0] > 0 else 0
    if count == 0:
        return None
    return Spectrum(matrix, energies[:count], vectors[:count])


def largest_rank(shape: Shape) -> int:
    """Return the largest number of products whose vectors have no more elements than their matrix (n, m)."""
    n, m = shape
    return min(n * m // max(n + m, 1), MAX_RANK)


def matrix_shape(shape: Shape) -> tuple[int, int]:
    """Return the shape of a tensor as a matrix: a row per output, or one row for a vector."""
    rows = shape[0] if len(shape) > 1 else 1
    return rows, math.prod(shape) // max(rows, 1)


def fit(matrix: Float32Array, left: Float32Array) -> tuple[Float32Array, Float32Array]:
    """Return the right vectors, float32 (r, m), with which products with given left ones, float32 (r, n), fit best.

    Returns:
        The right vectors, and the products of the left ones of norm 1 with the matrix, float32 (r, m).
    """
    units = unit_vectors(left)
    wide = units.astype(np.float64)
    seen = (units @ matrix).astype(np.float32, copy=False)
    gram = wide @ wide.T + _RIDGE * np.eye(len(wide))
    right = seen / gram if len(wide) == 1 else np.linalg.solve(gram, seen.astype(np.float64))
    return right.astype(np.float32), seen


def unit_vectors(left: Float32Array) -> Float32Array:
    """Return the left vectors at norm 1, float32 (r, n); a vector of zeros stays one."""
    return left * inverse_norms(left)[:, None]


def inverse_norms(left: Float32Array) -> Float32Array:
    """Return 1 over the norm of each left vector, float32 (r,); 0 for a vector of zeros.

    The values are levels at their centroids, so that their squares are exact and their sum has the same value on every
    machine.
    """
    squares = np.square(left, dtype=np.float64).sum(axis=1)
    inverse: Float64Array = 1 / np.sqrt(np.where(squares > 0, squares, np.inf))
    return inverse.astype(np.float32)


def _leading(matrix: Float32Array) -> tuple[Float32Array, Float64Array]:
    """Return the leading left singular vectors, float32 (k, n), and the squared singular values, float64 (k,)."""
    n, m = matrix.shape
    if min(n, m) > _GRAM:
        # Halko, Martinsson and Tropp 2011, Algorithm 4.4, with one power iteration
        directions = np.random.default_rng(0).standard_normal((m, _DIRECTIONS), dtype=np.float32)
        basis = _orthonormal(matrix @ directions)
        basis = _orthonormal(matrix @ (matrix.T @ basis))
        small, energies = _leading(basis.T @ matrix)
        return small @ basis.T, energies
    values, found = np.linalg.eigh(_gram(matrix if n <= m else matrix.T))
    energies = np.maximum(values[::-1], 0.0)
    vectors: Float32Array = np.ascontiguousarray(found.T[::-1], dtype=np.float32)
    if n <= m:
        return vectors, energies
    singular: Float32Array = np.sqrt(np.where(energies > 0, energies, np.inf)).astype(np.float32)
    return vectors @ matrix.T / singular[:, None], energies


def _gram(matrix: Float32Array) -> Float64Array:
    """Return the inner products of the rows, float64 (n, n)."""
    gram = np.zeros((len(matrix), len(matrix)))
    for start in range(0, matrix.shape[1], _COLUMNS):
        part = matrix[:, start : start + _COLUMNS].astype(np.float64)
        gram += part @ part.T
    return gram


def _orthonormal(columns: Float32Array) -> Float32Array:
    found: Float32Array = np.linalg.qr(columns)[0]
    return found


def _cost(rows: Float32Array, step: float, price: float) -> Float64Array:
    """Return what each quantized row costs in squared steps, by an estimate: the error plus the price of its bits.

    Args:
        rows: float32 (k, n).
        step: step of the quantizer.
        price: price of a bit, as a share of the squared step.
    """
    return row_costs(rows, _SMALL * step, step, price, _SIZE_BITS, _OCTAVE_BITS, _LOST)
