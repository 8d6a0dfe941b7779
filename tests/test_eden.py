"""EDEN at one bit: the published error, no bias, and one bit per weight."""

import numpy as np
import pytest

from tests.helpers import GAUSSIAN, bits_a_weight, estimate, make_method, squared_error


def test_error_of_one_gaussian_vector() -> None:
    estimated = estimate(make_method("eden").codec, GAUSSIAN, 1)
    assert squared_error(estimated, GAUSSIAN) == pytest.approx(0.571, abs=0.01)


def test_mean_of_200_seeds_has_a_200th_of_the_error() -> None:
    x, codec = GAUSSIAN[:20_000], make_method("eden").codec
    mean = np.mean([estimate(codec, x, seed) for seed in range(200)], axis=0)
    assert squared_error(mean, x) * 200 == pytest.approx(0.571, abs=0.03)


@pytest.mark.parametrize("kind", ["random", "constant", "sparse"])
def test_bits_a_weight(kind: str) -> None:
    assert bits_a_weight(make_method("eden").codec, kind) <= 1.001
