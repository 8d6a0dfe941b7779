"""Compiled Gaussian noise has the bits of the plain one."""

import numpy as np
import pytest

from fedmrn_app.kernels import gaussian, gaussian_plain
from fedmrn_app.noise import COMPILED_FROM, generate_noise


@pytest.mark.slow
def test_compiled_gaussian_noise_has_the_bits_of_the_plain_one() -> None:
    plain = generate_noise(9, COMPILED_FROM - 1, "gaussian", 0.01)
    compiled = generate_noise(9, COMPILED_FROM, "gaussian", 0.01)
    assert np.array_equal(plain.view(np.uint32), compiled[:-1].view(np.uint32))
    extremes = np.array([0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1], "<u4").view("<u8")
    vectors = np.empty((2, 6), np.float32)
    gaussian_plain.fill_gaussian(extremes, np.float32(1), vectors[0])
    gaussian.fill_gaussian(extremes, np.float32(1), vectors[1])
    assert np.array_equal(vectors[0], vectors[1])
