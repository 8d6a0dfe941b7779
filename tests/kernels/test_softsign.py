"""How far weights have moved on a scale of their own equals the formula in NumPy, bit for bit."""

import numpy as np
import pytest

from fedmrn_app.kernels.softsign import fill_softsign, fill_trends
from fedmrn_app.wire.adaptive_levels import trends_of


@pytest.mark.parametrize("scale", [1e-30, 0.02, 1.0, 3e20])
def test_compiled_loops_equal_the_formula(scale: float) -> None:
    x = np.random.default_rng(0).standard_t(1.5, 10_000).astype(np.float32) * np.float32(0.1)
    x[::7] = 0
    s, found, trends = np.float32(scale), np.empty_like(x), np.empty(x.size, np.int8)
    fill_softsign(x, s, found)
    fill_trends(x, s, trends)
    expected = x / (np.abs(x) + s)
    assert np.array_equal(found, expected)
    assert np.array_equal(trends, trends_of(expected))


def test_distances_that_are_not_finite_have_no_trend() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 3], np.float32)
    trends = np.full(4, 99, np.int8)
    fill_trends(x, np.float32(1), trends)
    assert trends.tolist() == [0, 0, 0, 12]
