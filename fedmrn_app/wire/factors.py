"""Matrices as sums of a few products of two vectors.

    matrix (n, m), a row per output  ~  sum over k of  outer(left_k, right_k) / norm2(left_k)

Local training changes a layer in few directions: the gradients of its outputs lie in a small space. The leading
singular vectors therefore hold most of an update's energy in far fewer numbers than the matrix has (Wang et al. 2018,
"ATOMO"; Vogels et al. 2019, "PowerSGD", section 3). Both vectors of a product are in the units of the matrix, with
norms near its singular value, so that one step of a quantizer costs each of their elements the same squared error.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedmrn_app.kernels.level_tables import MAX_LEVEL
from fedmrn_app.kernels.row_counts import row_bits, row_costs, row_counts
from fedmrn_app.layout import Float32Array, Shape
from fedmrn_app.wire.primitives import all_finite
from fedmrn_app.wire.singular import Directions, Float64Array, SingularVectors
from fedmrn_app.wire.sums import square_sum

MAX_RANK = 255
_LEAST = 0.05  # of a squared step: components with less energy per element are never tried
_RIDGE = 1e-3  # of rows of norm 1, which can be equal once they are quantized
# of the estimate of what a quantized vector costs; chosen so that what it prefers is shorter on kept updates
_SMALL, _LOST = 0.64, 0.07  # elements below are zero; the squared error of others, both in steps
_SIZE_BITS, _OCTAVE_BITS = 1.5, 1.2  # of a level of 1, its sign included, and of each octave above
_CODED = 0.95  # bits of coded levels over their entropy row by row, as in updates of CNNs and an LSTM
# matrices of which estimates see every ninth row only
_SAMPLED, _ROWS = 1 << 22, 9
_CLEAR = 1.2  # ratio of two costs, of which one is estimated so, that decides


class Spectrum:
    """The singular vectors of a matrix (n, m), the leading ones first.

    Attributes:
        matrix: float32 (n, m).
    """

    def __init__(self, matrix: Float32Array, directions: Directions) -> None:
        """Take a matrix that has `directions`."""
        self.matrix = matrix
        self._directions = directions
        self._all = directions.all  # the common case of many small matrices costs little
        self._square = square_sum(matrix.reshape(-1))

    def _vectors(self, count: int) -> SingularVectors:
        return self._all or self._directions.enough(lambda found: count)

    def energies(self, count: int) -> Float64Array:
        """Return the first `count` squared singular values, float64 (count,)."""
        return self._vectors(count).energies[:count]

    def left(self, count: int) -> Float32Array:
        """Return the first `count` left vectors, float32 (count, n)."""
        return self._vectors(count).left[:count]

    def right(self, count: int) -> Float32Array:
        """Return the first `count` right vectors times their singular values, float32 (count, m)."""
        return self._vectors(count).right(count)

    def scaled_left(self, count: int) -> Float32Array:
        """Return the first `count` left vectors times their singular values, float32 (count, n)."""
        return self._vectors(count).scaled_left[:count]

    def rank(self, step: float, price: float) -> int:
        """Return how many products are worth sending; 0 where the elements themselves are cheaper.

        A product is worth its price if the squared error that quantization leaves of it, plus the price of its bits, is
        less than its energy. Bits are estimated by the entropy of which elements are zero, row by row.

        Args:
            step: step of the quantizer.
            price: price of a bit, as a share of the squared step.
        """
        found = self._all or self._directions.enough(lambda found: self._worth(found, step, price)[0])
        rank, costs = self._worth(found, step, price)
        if rank == 0:
            return 0
        energies = found.energies[:rank] / step**2
        factored = float(costs[:rank].sum()) + max(self._square / step**2 - float(energies.sum()), 0.0)
        return rank if self._costs_more(factored, step, price) else 0

    def _worth(self, found: SingularVectors, step: float, price: float) -> tuple[int, Float64Array]:
        """Return how many of these products are worth sending, and what each costs."""
        costs = self._costs(found, step, price)
        cheaper = np.flatnonzero(costs < found.energies[: costs.size] / step**2)
        return (int(cheaper[-1]) + 1 if cheaper.size else 0), costs

    def _costs(self, found: SingularVectors, step: float, price: float) -> Float64Array:
        """Return what each product costs that may be worth sending, in squared steps; none where levels end."""
        energies = found.energies / step**2
        tried = int(np.count_nonzero(energies > _LEAST * max(self.matrix.shape)))
        left, right = found.scaled_left[:tried], found.right(tried)
        if tried == 0 or (energies[0] > MAX_LEVEL**2 and _largest(left, right) > MAX_LEVEL * step):
            return np.zeros(0)  # no element is above its vector
        return _cost(left, step, price) + _cost(right, step, price)

    def _costs_more(self, factored: float, step: float, price: float) -> bool:
        """Return whether the elements cost more than the factors do; a few rows of a large matrix often tell."""
        if self.matrix.size >= _SAMPLED:
            estimate = _of_sample(self.matrix, lambda rows: float(_cost(rows, step, price).sum()))
            if not estimate / _CLEAR < factored < estimate * _CLEAR:
                return factored < estimate
        return bool(factored < _cost(self.matrix, step, price).sum())

    def expected_bits(self, step: float, rank: int) -> float:
        """Return about how many bits the matrix takes as `rank` products, or as elements for 0."""
        if rank == 0:
            return expected_bits(self.matrix, step)
        return expected_bits(self.scaled_left(rank), step) + expected_bits(self.right(rank), step)

    def rest(self, rank: int) -> float:
        """Return the squared norm of what is in none of the first `rank` products."""
        return max(self._square - float(self.energies(rank).sum()), 0.0)

    def largest(self, rank: int) -> float:
        """Return the largest element of the vectors of the first `rank` products."""
        return _largest(self.scaled_left(rank), self.right(rank))

    def expected_loss(self, step: float, rank: int) -> float:
        """Return about the squared error of the matrix as `rank` products, or as elements for 0."""
        if rank == 0:
            return expected_loss(self.matrix, step)
        return self.rest(rank) + expected_loss(self.scaled_left(rank), step) + expected_loss(self.right(rank), step)


def expected_loss(rows: Float32Array, step: float) -> float:
    """Return about the squared error of quantized rows, float32 (k, n)."""

    def lost(rows: Float32Array) -> float:
        counts = row_counts(rows, _SMALL * step, step)
        return float(counts.lost.sum() + _LOST * step**2 * counts.kept.sum())

    return _of_sample(rows, lost) if rows.size >= _SAMPLED else lost(rows)


def expected_bits(rows: Float32Array, step: float) -> float:
    """Return about how many bits quantized rows take, float32 (k, n).

    They are the entropy of which elements are zero, of the signs, and of levels with a geometric distribution, row by
    row. The number of products follows from another estimate, `_cost`.
    """

    def bits(rows: Float32Array) -> float:
        return _CODED * row_bits(rows, _SMALL * step, step)

    return _of_sample(rows, bits) if rows.size >= _SAMPLED else bits(rows)


def _of_sample(rows: Float32Array, sum_of: Callable[[Float32Array], float]) -> float:
    """Return about the sum over all rows, float32 (k, n), from every ninth one."""
    sample = rows[:: _ROWS if len(rows) > _ROWS**2 else 1]
    return sum_of(sample) * len(rows) / len(sample)


def _largest(*vectors: Float32Array) -> float:
    """Return the largest element of vectors."""
    return max(float(np.abs(rows).max()) for rows in vectors)


def spectrum(matrix: Float32Array) -> Spectrum | None:
    """Return the singular vectors of a matrix, float32 (n, m), or None.

    A matrix has none if it is too small for factors, zero, or not finite.
    """
    most = largest_rank(matrix.shape)
    if most == 0 or not all_finite(matrix):
        return None
    directions = Directions(matrix, most)
    return Spectrum(matrix, directions) if len(directions.enough(lambda found: 0).energies) else None


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


def _cost(rows: Float32Array, step: float, price: float) -> Float64Array:
    """Return what each quantized row costs in squared steps, by an estimate: the error plus the price of its bits.

    Args:
        rows: float32 (k, n).
        step: step of the quantizer.
        price: price of a bit, as a share of the squared step.
    """
    return row_costs(rows, _SMALL * step, step, price, _SIZE_BITS, _OCTAVE_BITS, _LOST)
