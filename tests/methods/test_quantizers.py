"""The quantisers: every constant computed anew from the normal distribution, and the loop held to a search."""

import math
from itertools import pairwise

import numpy as np
import pytest

from fedmrn_app.methods.quantizers import lloyd_max
from tests.helpers import GAUSSIAN

ALL_BITS = [1, 2, 3, 4]


def above(x: float) -> float:
    """The probability that a normal variable is above x."""
    return math.erfc(x / math.sqrt(2)) / 2


def density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


@pytest.mark.parametrize("bits", ALL_BITS)
def test_centroids_are_the_means_of_their_cells(bits: int) -> None:
    """The positive half, where no digits are lost: mean and probability between two midpoints."""
    quantiser = lloyd_max(bits)
    half = quantiser.centroids[1 << (bits - 1) :].tolist()
    assert len(half) == 1 << (bits - 1)
    edges = [0.0, *((a + b) / 2 for a, b in pairwise(half)), math.inf]
    for number, (low, high) in enumerate(pairwise(edges)):
        probability = above(low) - above(high)
        assert half[number] == pytest.approx((density(low) - density(high)) / probability, rel=1e-14)
        assert quantiser.cells[len(half) + number] == round(probability * (1 << 24))
    assert np.array_equal(quantiser.boundaries, [*(-edge for edge in edges[-2:0:-1]), *edges[:-1]])


@pytest.mark.parametrize("bits", ALL_BITS)
def test_everything_is_symmetric_and_adds_up(bits: int) -> None:
    quantiser = lloyd_max(bits)
    assert np.array_equal(quantiser.centroids, -quantiser.centroids[::-1])
    assert np.array_equal(quantiser.cells, quantiser.cells[::-1])
    assert quantiser.cells.sum() == 1 << 24


@pytest.mark.parametrize(("bits", "distortion"), [(1, 0.3634), (2, 0.1175), (3, 0.03454), (4, 0.009497)])
def test_distortion_is_the_published_one(bits: int, distortion: float) -> None:
    """Max 1960, Table I."""
    quantiser = lloyd_max(bits)
    power = (quantiser.cells * np.square(quantiser.centroids)).sum() / (1 << 24)
    assert 1 - power == pytest.approx(distortion, abs=2e-5)


@pytest.mark.parametrize("bits", ALL_BITS)
def test_quantising_equals_a_search(bits: int) -> None:
    quantiser = lloyd_max(bits)
    boundaries = quantiser.boundaries.astype(np.float32)
    near = [boundaries, np.nextafter(boundaries, np.float32(-9)), np.nextafter(boundaries, np.float32(9))]
    x = np.concatenate([GAUSSIAN[:100_000], *near, np.array([-0.0, -1e30, 1e30, -np.inf, np.inf], np.float32)])
    levels = quantiser.quantise(x)
    assert levels.dtype == np.uint8
    assert np.array_equal(levels, np.searchsorted(boundaries, x, side="right"))
    assert np.array_equal(quantiser.values(levels), quantiser.centroids.astype(np.float32)[levels])
    nearest = np.abs(GAUSSIAN[:100_000, None].astype(np.float64) - quantiser.centroids).argmin(1)
    assert np.mean(levels[:100_000] == nearest) > 0.9999  # but on what rounds to a boundary
