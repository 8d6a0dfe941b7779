"""The compiled noise equals NumPy's bit for bit, at any place of a vector."""

import numpy as np
import pytest

from fedmrn_app.kernels.philox import add_masked, fill_rows
from fedmrn_app.noise import generate_noise

SEEDS = [0, 12345, (1 << 64) - 1]
ALPHA, COUNT = np.float32(0.01), 60_000


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("start", "stride", "shape"), [(0, 1, (1, COUNT)), (37, 150, (300, 125)), (3, 64, (900, 7))])
def test_rows_equal_the_noise(seed: int, start: int, stride: int, shape: tuple[int, int]) -> None:
    rows = np.empty(shape, np.float32)
    fill_rows(seed, start, stride, ALPHA, rows)
    places = start + stride * np.arange(shape[0])[:, None] + np.arange(shape[1])
    assert np.array_equal(rows, generate_noise(seed, COUNT, "uniform", float(ALPHA))[places])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("first", [0, 5, 4096])
def test_sums_equal_the_plain_operations(seed: int, first: int) -> None:
    random = np.random.default_rng(1)
    factors = random.integers(-1, 2, COUNT - first).astype(np.int8)
    total = random.standard_normal(factors.size, np.float32)
    masked = generate_noise(seed, COUNT, "uniform", float(ALPHA))[first:] * factors
    masked *= np.float32(600)
    expected = total + masked
    add_masked(seed, first, ALPHA, factors, np.float32(600), total)
    assert total.tobytes() == expected.tobytes()


def test_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="9 factors for 10"):
        add_masked(0, 0, ALPHA, np.zeros(9, np.int8), np.float32(1), np.zeros(10, np.float32))
