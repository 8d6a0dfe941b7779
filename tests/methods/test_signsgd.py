"""SignSGD: a scale for each tensor times signs, whose mean is the update."""

import numpy as np
import pytest

from fedmrn_app.layout import Layout
from tests.helpers import SHAPES, bits_a_weight, estimate, make_method, moved, updates


def test_stochastic_signs_are_unbiased() -> None:
    x = np.random.default_rng(1).uniform(-0.9, 0.9, 500).astype(np.float32)
    x[0] = 1  # the scale
    draws, codec = 4000, make_method("signsgd").codec
    mean = np.mean([estimate(codec, x, seed) for seed in range(draws)], axis=0, dtype=np.float64)
    assert (np.abs(mean - x) <= 4 * np.sqrt((1 - x**2) / draws) + 1e-6).all()


def test_a_scale_for_each_tensor_times_signs() -> None:
    layout, known = Layout(SHAPES), moved(SHAPES)
    x = updates("random", layout.count)
    codec = make_method("signsgd").codec
    update = codec.decode(codec.encode(x, known, 0, 0), known, 0)
    for mine, theirs in zip(layout.split(update), layout.split(x), strict=True):
        assert (np.abs(mine) == np.abs(theirs).max()).all()


def test_with_error_feedback_signs_are_taken_and_scaled_by_the_mean() -> None:
    layout, known = Layout(SHAPES), moved(SHAPES)
    x = updates("random", layout.count)
    codec = make_method("signsgd", error_feedback=True).codec
    update = codec.decode(codec.encode(x, known, 0, 0), known, 0)
    for mine, theirs in zip(layout.split(update), layout.split(x), strict=True):
        np.testing.assert_allclose(mine, np.where(theirs >= 0, 1, -1) * np.abs(theirs).mean(), rtol=1e-5)


@pytest.mark.parametrize("kind", ["random", "constant", "sparse"])
def test_bits_a_weight(kind: str) -> None:
    assert bits_a_weight(make_method("signsgd").codec, kind) <= 1.001
