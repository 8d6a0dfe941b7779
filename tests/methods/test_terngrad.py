"""TernGrad: clipped at two and a half standard deviations, and unbiased within."""

import numpy as np
import pytest

from fedmrn_app.errors import ConfigError
from tests.helpers import GAUSSIAN, bits_a_weight, estimate, make_method, squared_error


def test_trits_are_unbiased() -> None:
    x = np.random.default_rng(1).uniform(-0.9, 0.9, 500).astype(np.float32)
    x[0] = 1  # the scale; nothing lies beyond 2.5 standard deviations
    draws, codec = 4000, make_method("terngrad").codec
    mean = np.mean([estimate(codec, x, seed) for seed in range(draws)], axis=0, dtype=np.float64)
    assert (np.abs(mean - x) <= 4 * np.sqrt((np.abs(x) - x**2) / draws) + 1e-6).all()


def test_clips_at_two_and_a_half_sigma() -> None:
    x = GAUSSIAN[:100_000]
    limit = 2.5 * x.std()
    estimated = estimate(make_method("terngrad").codec, x, 0)
    assert np.unique(np.abs(estimated)).tolist() == pytest.approx([0, limit], rel=1e-5)
    wider = estimate(make_method("terngrad", clip=100.0).codec, x, 0)
    assert squared_error(wider, x) > squared_error(estimated, x)


@pytest.mark.parametrize("kind", ["random", "constant", "sparse"])
def test_bits_a_weight(kind: str) -> None:
    assert bits_a_weight(make_method("terngrad").codec, kind) <= 1.6


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"strategy\.clip=-1\.0"):
        make_method("terngrad", clip=-1.0)
