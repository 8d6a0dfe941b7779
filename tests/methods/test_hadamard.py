"""The rotation is orthogonal, mixes, and equals the product with its matrix."""

import numpy as np
import pytest

from fedmrn_app.kernels.walsh_hadamard import walsh_hadamard
from fedmrn_app.methods.hadamard import BLOCK, block_lengths, rotate, rotate_back, stretch_lengths
from fedmrn_app.noise import generate_noise
from tests.helpers import GAUSSIAN


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 1000, BLOCK, BLOCK + 1, 2 * BLOCK + 999])
def test_rotation_is_orthogonal_and_mixes(size: int) -> None:
    x = GAUSSIAN[:size]
    y = rotate(x, 5)
    assert np.linalg.norm(y) == pytest.approx(np.linalg.norm(x), rel=1e-5)
    np.testing.assert_allclose(rotate_back(y, 5), x, atol=1e-5)
    if size >= 1000:
        spike = np.zeros(size, np.float32)
        spike[size // 3] = 1
        assert np.abs(rotate(spike, 5)).max() < 0.1
        assert not np.array_equal(y, rotate(x, 6))


def test_rotation_equals_a_matrix_product() -> None:
    """The plain form: Sylvester's matrix in float64, on the two overlapping windows of 24 elements."""
    hadamard = np.ones((1, 1))
    while len(hadamard) < 16:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    hadamard /= 4
    signs = generate_noise(9, 48, "bernoulli", 1.0).astype(np.float64)
    expected = GAUSSIAN[:24].astype(np.float64)
    expected[:16] = hadamard @ (signs[:16] * expected[:16])
    expected[8:] = hadamard @ (signs[24:40] * expected[8:])
    np.testing.assert_allclose(rotate(GAUSSIAN[:24], 9), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [7, BLOCK, 2 * BLOCK + 24])
def test_signs_are_those_of_the_noise(size: int) -> None:
    """The plain form: float32 products with Bernoulli noise, bit for bit."""
    x = GAUSSIAN[:size].copy()
    rotated = rotate(x, 9)
    whole = size - size % BLOCK
    signs = generate_noise(9, 2 * size, "bernoulli", 1.0)
    for start in range(0, whole, BLOCK):
        x[start : start + BLOCK] *= signs[start : start + BLOCK]
        walsh_hadamard(x[None, start : start + BLOCK])
    n = size % BLOCK
    window = 1 << (n.bit_length() - 1) if n else 0
    for place, first in [(whole, whole), (size - window, size)][: (n > 0) + (n > window)]:
        x[place : place + window] *= signs[first : first + window]
        walsh_hadamard(x[None, place : place + window])
    assert np.array_equal(rotated, x)


def test_lengths_of_blocks_and_stretches() -> None:
    for size, blocks in ((0, []), (5, [5]), (2 * BLOCK, [BLOCK, BLOCK]), (BLOCK + 1, [BLOCK, 1])):
        assert block_lengths(size) == blocks
    for size, stretches in ((5, [1, 4]), (64, [64]), (2 * BLOCK, [BLOCK, BLOCK]), (BLOCK + 24, [BLOCK, 8, 16])):
        assert stretch_lengths(size) == stretches


@pytest.mark.slow
def test_coordinates_of_a_stretch_have_one_distribution() -> None:
    """The update is large in one half; elements outside the second window depend on the first window only."""
    x = GAUSSIAN[:1500].copy()
    x[:700] *= 5
    power = np.mean([np.square(rotate(x, seed)) for seed in range(2000)], axis=0)
    for part in np.split(power, np.cumsum(stretch_lengths(x.size))[:-1]):
        np.testing.assert_allclose(part, part.mean(), rtol=0.25)
    outside, inside = np.split(power, [1500 - 1024])
    assert outside.mean() > 1.3 * inside.mean()
