"""DRIVE: the published errors of both scales, and one bit per weight."""

from typing import Any

import numpy as np
import pytest

from fedmrn_app.errors import ConfigError, PayloadError
from fedmrn_app.wire.body import Body
from tests.helpers import GAUSSIAN, bits_a_weight, estimate, make_method, moved, squared_error


@pytest.mark.parametrize(
    ("options", "expected", "within"),
    [
        ({}, 0.363, 0.005),  # 1 - 2 / pi
        ({"scale": "unbiased"}, 0.571, 0.01),  # pi / 2 - 1
    ],
)
def test_error_of_one_gaussian_vector(options: dict[str, Any], expected: float, within: float) -> None:
    estimated = estimate(make_method("drive", **options).codec, GAUSSIAN, 1)
    assert squared_error(estimated, GAUSSIAN) == pytest.approx(expected, abs=within)


def test_mean_of_200_seeds_has_a_200th_of_the_error() -> None:
    x, codec = GAUSSIAN[:20_000], make_method("drive", scale="unbiased").codec
    mean = np.mean([estimate(codec, x, seed) for seed in range(200)], axis=0)
    assert squared_error(mean, x) * 200 == pytest.approx(0.571, abs=0.03)


def test_scales_that_overflow_are_refused() -> None:
    codec, known = make_method("drive").codec, moved(((1000, 1),))
    body = codec.encode(GAUSSIAN[:1000], known, 1, 0)
    huge = np.float32(3e38).tobytes() + bytes(body.data[4:])
    with pytest.raises(PayloadError, match="update is not finite"):
        codec.decode(Body(huge), known, 1)


@pytest.mark.parametrize("kind", ["random", "constant", "sparse"])
def test_bits_a_weight(kind: str) -> None:
    assert bits_a_weight(make_method("drive").codec, kind) <= 1.001


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"strategy\.scale=best: must be one of least_mse, unbiased"):
        make_method("drive", scale="best")
