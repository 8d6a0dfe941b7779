"""The compiled transform against its plain form, Sylvester's matrix, and packed signs against unpacked ones."""

from __future__ import annotations

import numpy as np
import pytest

from fedmrn_app.kernels.signs import multiply_by_signs
from fedmrn_app.kernels.walsh_hadamard import walsh_hadamard
from fedmrn_app.layout import Float32Array


def plain(rows: Float32Array) -> Float32Array:
    """The transform as its definition has it, in the order of the sums that the compiled form takes."""
    n = rows.shape[1]
    x = rows * np.float32(1 / np.sqrt(n))
    step = 1
    while step < n:
        pairs = x.reshape(len(rows), -1, 2, step)
        x = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(len(rows), n)
        step *= 2
    return x.astype(np.float32)


@pytest.mark.parametrize("power", range(17))
def test_equals_the_plain_form_bit_for_bit(power: int) -> None:
    rows = np.random.default_rng(power).standard_normal((3, 1 << power), np.float32)
    expected = plain(rows)
    walsh_hadamard(rows)
    np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize("power", [0, 1, 4, 7])
def test_equals_the_product_with_the_matrix(power: int) -> None:
    matrix = np.ones((1, 1))
    for _ in range(power):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]]) / np.sqrt(2)
    rows = np.random.default_rng(0).standard_normal((2, 1 << power), np.float32)
    expected = rows @ matrix
    walsh_hadamard(rows)
    np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-6)


def test_large_elements_do_not_overflow() -> None:
    row = np.full((1, 1 << 16), 1e36, np.float32)
    walsh_hadamard(row)
    assert row[0, 0] == pytest.approx(2.56e38, rel=1e-6)
    assert not row[0, 1:].any()


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000])
def test_packed_signs(size: int) -> None:
    rng = np.random.default_rng(size)
    values, signs = rng.standard_normal(size, np.float32), rng.random(size) < 0.5
    expected = values * np.where(signs, 1, -1).astype(np.float32)
    multiply_by_signs(values, np.packbits(signs, bitorder="little"))
    np.testing.assert_array_equal(values, expected)
