"""The quantizers: every constant computed again from the normal distribution, and the loop compared with a search."""

import math
from itertools import pairwise

import numpy as np
import pytest

from fedmrn_app.methods.quantizers import lloyd_max, uniform
from tests.helpers import GAUSSIAN


def above(x: float) -> float:
    """The probability that a normal variable is above x."""
    return math.erfc(x / math.sqrt(2)) / 2


def density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


@pytest.mark.parametrize(("bits", "distortion"), [(1, 0.3634), (2, 0.1175), (3, 0.03454), (4, 0.009497)])
def test_constants_are_those_of_the_normal_distribution(bits: int, distortion: float) -> None:
    """Centroids are the means of their cells, computed in the positive half; the distortion is in Max 1960, Table I."""
    quantizer = lloyd_max(bits)
    half = quantizer.centroids[1 << (bits - 1) :].tolist()
    assert len(half) == 1 << (bits - 1)
    edges = [0.0, *((a + b) / 2 for a, b in pairwise(half)), math.inf]
    for number, (low, high) in enumerate(pairwise(edges)):
        probability = above(low) - above(high)
        assert half[number] == pytest.approx((density(low) - density(high)) / probability, rel=1e-14)
        assert quantizer.cells[len(half) + number] == round(probability * (1 << 24))
    assert np.array_equal(quantizer.boundaries, [*(-edge for edge in edges[-2:0:-1]), *edges[:-1]])
    assert np.array_equal(quantizer.centroids, -quantizer.centroids[::-1])
    assert np.array_equal(quantizer.cells, quantizer.cells[::-1])
    assert quantizer.cells.sum() == 1 << 24
    power = (quantizer.cells * np.square(quantizer.centroids)).sum() / (1 << 24)
    assert 1 - power == pytest.approx(distortion, abs=2e-5)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_quantizing_equals_a_search(bits: int) -> None:
    quantizer = lloyd_max(bits)
    boundaries = quantizer.boundaries.astype(np.float32)
    near = [boundaries, np.nextafter(boundaries, np.float32(-9)), np.nextafter(boundaries, np.float32(9))]
    x = np.concatenate([GAUSSIAN[:100_000], *near, np.array([-0.0, -1e30, 1e30, -np.inf, np.inf], np.float32)])
    levels = quantizer.quantize(x, np.float32(1))[0]
    assert levels.dtype == np.uint8
    assert np.array_equal(levels, np.searchsorted(boundaries, x, side="right"))
    assert np.array_equal(quantizer.values(levels), quantizer.centroids.astype(np.float32)[levels])
    nearest = np.abs(GAUSSIAN[:100_000, None].astype(np.float64) - quantizer.centroids).argmin(1)
    assert np.mean(levels[:100_000] == nearest) > 0.9999  # except for values that round to a boundary


@pytest.mark.parametrize(("bits", "distortion"), [(2, 0.08895), (3, 0.02224), (4, 0.00556)])
def test_uniform_levels_have_the_means_of_their_cells_and_the_entropy(bits: int, distortion: float) -> None:
    """The distortion is a little above 2 pi e / 12 4^-bits, the limit of fine steps (Gish and Pierce 1968)."""
    quantizer = uniform(bits)
    largest = len(quantizer.cells) // 2
    edges = [(level - 0.5) * quantizer.step for level in range(1, largest + 1)] + [math.inf]
    for level, (low, high) in enumerate(pairwise(edges), 1):
        probability = above(low) - above(high)
        assert quantizer.centroids[largest + level] == pytest.approx(
            (density(low) - density(high)) / probability, rel=1e-9
        )
        assert quantizer.cells[largest + level] == round(probability * (1 << 24)) > 0
    assert above(edges[-2] + quantizer.step) < 2**-24  # a level more would have no cell
    assert np.array_equal(quantizer.centroids, -quantizer.centroids[::-1])
    assert np.array_equal(quantizer.cells, quantizer.cells[::-1])
    assert quantizer.cells.sum() == 1 << 24
    shares = quantizer.cells / (1 << 24)
    assert bits - 0.0002 < -(shares * np.log2(shares)).sum() <= bits
    assert 1 - shares @ np.square(quantizer.centroids) == pytest.approx(distortion, rel=1e-3)
    assert distortion == pytest.approx(math.pi * math.e / 6 * 4.0**-bits, rel=2e-3)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_uniform_quantizing_equals_a_search_of_the_boundaries(bits: int) -> None:
    quantizer = uniform(bits)
    largest = len(quantizer.cells) // 2
    boundaries = (np.arange(-largest, largest) + 0.5) * quantizer.step
    x = np.concatenate([GAUSSIAN[:100_000], np.array([-0.0, -1e30, 1e30, -np.inf, np.inf], np.float32)])
    levels = quantizer.quantize(x, np.float32(1))[0]
    assert levels.dtype == np.uint8
    distance = np.abs(x[:, None] - boundaries).min(1)
    clear = distance > 1e-6
    assert clear.mean() > 0.9999
    assert np.array_equal(levels[clear], np.searchsorted(boundaries, x[clear]))
    assert np.array_equal(quantizer.values(levels), quantizer.centroids.astype(np.float32)[levels])
