"""EDEN in one to four bits: the error that the quantiser's distortion gives, no bias, and the bits per weight."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.eden import quantise_stretch
from fedmrn_app.methods.quantizers import lloyd_max
from fedmrn_app.wire.body import CODED, PLAIN, Body
from tests.helpers import GAUSSIAN, bits_a_weight, estimate, make_method, moved, squared_error

ALL_BITS, LEVELS = [1, 2, 3, 4], [2, 3, 4]


def expected_error(bits: int) -> float:
    """E(z - Q / (1 - D))^2 = 1 / (1 - D) - 1 of a normal variable z, with E(z Q) = E(Q^2) = 1 - D for its centroids."""
    quantiser = lloyd_max(bits)
    power = (quantiser.cells * np.square(quantiser.centroids)).sum() / quantiser.cells.sum()
    return float(1 / power - 1)


def estimates(bits: int, x: Float32Array, seeds: int) -> NDArray[np.float32]:
    codec = make_method("eden", bits=bits).codec
    return np.array([estimate(codec, x, seed) for seed in range(seeds)])


@pytest.mark.parametrize(("bits", "error"), [(1, 0.5708), (2, 0.1331), (3, 0.03578), (4, 0.00959)])
def test_error_of_one_gaussian_vector(bits: int, error: float) -> None:
    assert expected_error(bits) == pytest.approx(error, rel=1e-3)
    estimated = estimate(make_method("eden", bits=bits).codec, GAUSSIAN, 1)
    assert squared_error(estimated, GAUSSIAN) == pytest.approx(error, rel=0.02)


@pytest.mark.parametrize("bits", ALL_BITS)
def test_mean_of_200_seeds_has_a_200th_of_the_error(bits: int) -> None:
    x = GAUSSIAN[:20_000]
    mean = estimates(bits, x, 200).mean(0)
    assert squared_error(mean, x) * 200 == pytest.approx(expected_error(bits), rel=0.05)


@pytest.mark.parametrize("bits", LEVELS)
@pytest.mark.parametrize("size", [1500, 2048])
def test_mean_is_the_update_within_four_standard_errors(bits: int, size: int) -> None:
    """Along the update's halves, of which one is larger, along a spike, and along random directions."""
    x = GAUSSIAN[:size].copy()
    x[: size // 3] *= 5
    x[size // 2] = 20
    seeds = 1000
    off = estimates(bits, x, seeds).astype(np.float64) - x
    place = np.arange(size)
    random = np.random.default_rng(1).standard_normal((5, size))
    directions = np.stack([x * (place < size // 3), x * (place >= size // 3), place == size // 2, *random])
    along = off @ directions.T
    assert (np.abs(along.mean(0)) < 4 * along.std(0) / np.sqrt(seeds)).all()
    assert np.square(off).sum() / seeds == pytest.approx(expected_error(bits) * np.square(x).sum(), rel=0.05)


def test_scales_are_those_of_the_paper() -> None:
    """norm2(y)^2 / <y, Q(y)>, written out with a search for the nearest centroid."""
    y = (GAUSSIAN[:1000] * np.float32(0.01)).astype(np.float32)
    exact = y.astype(np.float64)
    for bits in LEVELS:
        quantiser = lloyd_max(bits)
        unit = exact / np.sqrt(np.mean(np.square(exact)))
        nearest = np.abs(unit[:, None] - quantiser.centroids).argmin(1)
        levels, scale = quantise_stretch(y, quantiser)
        assert np.array_equal(levels, nearest)
        assert scale == pytest.approx(np.sum(exact**2) / np.sum(exact * quantiser.centroids[nearest]), rel=1e-6)


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_squares_need_no_room_in_float32(size: float) -> None:
    x = GAUSSIAN[:3000] * np.float32(size)
    estimated = estimate(make_method("eden", bits=3).codec, x, 1)
    assert squared_error(estimated.astype(np.float64) / size, GAUSSIAN[:3000]) == pytest.approx(0.0358, rel=0.1)


@pytest.mark.parametrize("kind", ["random", "constant", "sparse"])
@pytest.mark.parametrize(("bits", "taken"), [(1, 1.001), (2, 1.916), (3, 2.83), (4, 3.77)])
def test_bits_a_weight(bits: int, taken: float, kind: str) -> None:
    codec = make_method("eden", bits=bits).codec
    assert bits_a_weight(codec, kind) <= taken
    assert bits_a_weight(make_method("eden", "packed", bits=bits).codec, kind) == pytest.approx(bits, abs=0.001)


def test_one_bit_is_never_coded() -> None:
    codec, known = make_method("eden").codec, moved(((1000, 1),))
    body = codec.encode(GAUSSIAN[:1000], known, 1, 0)
    assert body.form == PLAIN
    with pytest.raises(PayloadError, match="body is in form 1"):
        codec.decode(Body(body.data, CODED), known, 1)


@pytest.mark.parametrize("bits", LEVELS)
def test_body_of_another_number_of_bits_is_refused(bits: int) -> None:
    known = moved(((1000, 1),))
    body = make_method("eden", "packed", bits=bits).codec.encode(GAUSSIAN[:1000], known, 1, 0)
    for other in set(ALL_BITS) - {bits}:
        with pytest.raises(PayloadError, match=r"body has \d+ bytes where \d+ bits take"):
            make_method("eden", bits=other).codec.decode(body, known, 1)


@pytest.mark.parametrize(
    ("scale", "reason"),
    [(3e38, "update is not finite"), (np.nan, "not finite"), (-1, "a negative scale")],
)
def test_wrong_scales_are_refused(scale: float, reason: str) -> None:
    codec, known = make_method("eden", bits=4).codec, moved(((1000, 1),))
    body = codec.encode(GAUSSIAN[:1000], known, 1, 0)
    changed = np.array([scale, scale], "<f4").tobytes() + bytes(body.data[8:])
    with pytest.raises(PayloadError, match=reason):
        codec.decode(Body(changed, body.form), known, 1)
