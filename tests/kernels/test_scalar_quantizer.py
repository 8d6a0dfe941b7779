"""Levels, centroids and products equal NumPy's, bit for bit."""

import numpy as np
import pytest

from fedmrn_app.methods.quantizers import lloyd_max, uniform
from tests.helpers import GAUSSIAN

FACTOR = np.float32(37.123)
EDGES = np.array([-0.0, 0.0, 1e30, -1e30, 3e38], np.float32)
Y = np.concatenate([GAUSSIAN[:50_001] / FACTOR, EDGES])


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_boundaries_are_counted_as_by_comparisons(bits: int) -> None:
    quantizer = lloyd_max(bits)
    with np.errstate(over="ignore"):
        expected = (Y[:, None] * FACTOR >= quantizer.boundaries.astype(np.float32)).sum(axis=1)
    levels, products = quantizer.quantize(Y, FACTOR)
    assert np.array_equal(levels, expected)
    values = quantizer.centroids.astype(np.float32)[levels]
    assert np.array_equal(products, np.multiply(Y, values, dtype=np.float64))


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_multiples_are_rounded_and_clipped_as_by_numpy(bits: int) -> None:
    quantizer = uniform(bits)
    step, largest = np.float32(quantizer.step), len(quantizer.cells) // 2
    halves = (np.arange(-largest - 2, largest + 2) + np.float32(0.5)).astype(np.float32) * step / FACTOR
    y = np.concatenate([Y, halves])
    with np.errstate(over="ignore"):
        expected = np.clip(np.rint(y * FACTOR / step), -largest, largest) + largest
    levels, products = quantizer.quantize(y, FACTOR)
    assert np.array_equal(levels, expected)
    values = quantizer.centroids.astype(np.float32)[levels]
    assert np.array_equal(products, np.multiply(y, values, dtype=np.float64))


def test_levels_beyond_the_last_one_have_its_centroid() -> None:
    quantizer = lloyd_max(2)
    assert np.array_equal(
        quantizer.values(np.array([0, 3, 4, 255], np.uint8)), quantizer.centroids[[0, 3, 3, 3]].astype(np.float32)
    )
