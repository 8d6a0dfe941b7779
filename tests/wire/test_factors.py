"""Products of two vectors: they are the same on every machine, and their number is the one that pays."""

import numpy as np
import pytest

from fedmrn_app.kernels.outer_products import product
from fedmrn_app.layout import Float32Array
from fedmrn_app.wire.factors import fit, inverse_norms, largest_rank, matrix_shape, spectrum

RANDOM = np.random.default_rng(5)


def normal(*shape: int) -> Float32Array:
    return RANDOM.normal(size=shape).astype(np.float32)


def plain_product(left: Float32Array, right: Float32Array) -> Float32Array:
    found = np.zeros((left.shape[1], right.shape[1]), np.float32)
    for a, b in zip(left, right, strict=True):
        found += a[:, None] * b
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("n", "m", "rank"), [(1, 1, 1), (7, 5, 3), (300, 1000, 6), (3, 40_000, 2)])
def test_products_are_added_one_after_the_other(n: int, m: int, rank: int) -> None:
    left, right = normal(rank, n), normal(rank, m)
    assert np.array_equal(product(left, right), plain_product(left, right))
    assert plain_product(left, right) == pytest.approx(left.T @ right, abs=1e-4)
    scaled = plain_product(left, right) * np.float32(0.3) * np.float32(7e-4)
    assert np.array_equal(product(left, right, scales=(0.3, 7e-4)), scaled)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(40, 90), (90, 40), (600, 700), (2, 3000)])
def test_the_leading_vectors_are_the_singular_ones(shape: tuple[int, int]) -> None:
    matrix = normal(shape[0], 4) @ (normal(4, shape[1]) * np.array([[8], [4], [2], [1]], np.float32))
    matrix += 1e-3 * normal(*shape)
    found = spectrum(matrix)
    assert found is not None
    rank = min(4, largest_rank(shape))
    u, s, vt = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    assert np.sqrt(found.energies(rank)) == pytest.approx(s[:rank], rel=1e-3)
    for k in range(rank):
        assert abs(found.left(rank)[k] @ u[:, k]) == pytest.approx(1, abs=1e-3)
        assert abs(found.right(rank)[k] @ vt[k]) == pytest.approx(s[k], rel=1e-3)
    assert np.linalg.norm(found.scaled_left(rank), axis=1) == pytest.approx(s[:rank], rel=1e-3)


def test_a_rank_pays_only_where_there_are_directions() -> None:
    few, many = spectrum(normal(64, 3) @ normal(3, 300)), spectrum(normal(64, 300))
    assert few is not None
    assert many is not None
    assert few.rank(0.3, 0.11) == 3
    assert few.rank(1e3, 0.11) == 0  # all elements are zero then
    assert few.rank(1e-4, 0.11) == 0  # beyond the largest level
    assert many.rank(0.3, 0.11) == 0


def test_matrices_that_can_have_no_factors() -> None:
    assert [largest_rank(shape) for shape in ((1, 9), (9, 1), (0, 4), (2, 2), (64, 64), (4096, 4096))] == [
        0, 0, 0, 1, 32, 255,
    ]  # fmt: skip
    assert spectrum(normal(1, 30)) is None
    assert spectrum(np.zeros((20, 30), np.float32)) is None
    assert [matrix_shape(shape) for shape in ((8, 3, 3, 3), (5, 7), (6,), ())] == [(8, 27), (5, 7), (1, 6), (1, 1)]


def test_right_vectors_fit_even_if_left_ones_are_equal_or_zero() -> None:
    matrix = normal(20, 50)
    left = np.round(3 * normal(4, 20))
    left[2], left[3] = left[1], 0
    right, seen = fit(matrix, left)
    units = left * inverse_norms(left)[:, None]
    assert np.isfinite(right).all()
    assert seen == pytest.approx(units @ matrix, abs=1e-4)
    best = np.linalg.lstsq(units.T.astype(np.float64), matrix, rcond=1e-6)[0]
    assert units.T @ right == pytest.approx(units.T @ best, abs=0.02)
    assert inverse_norms(left)[3] == 0


@pytest.mark.slow
def test_vectors_of_a_large_matrix_do_not_depend_on_what_was_asked_before() -> None:
    matrix = (normal(520, 90) * np.geomspace(1, 0.1, 90, dtype=np.float32)) @ normal(90, 600)
    asked, fresh = spectrum(matrix), spectrum(matrix)
    assert asked is not None
    assert fresh is not None
    assert len(asked.scaled_left(80)) == 80  # takes a second block of directions
    assert np.array_equal(asked.scaled_left(10), fresh.scaled_left(10))
    assert np.array_equal(asked.right(10), fresh.right(10))
    singular = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    assert np.sqrt(asked.energies(80)) == pytest.approx(singular[:80], rel=1e-4)
    units = asked.left(90)
    assert units @ units.T == pytest.approx(np.eye(90), abs=1e-4)
    assert np.linalg.norm(units.T @ asked.right(90) - matrix) < 1e-4 * np.linalg.norm(matrix)
