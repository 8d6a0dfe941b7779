"""The noise's scale: known to both sides, told by the masks themselves, and steered to a budget of bits."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.fedmrn import FedMRN, FedMRNS, NoiseMask
from fedmrn_app.methods.known import Known
from fedmrn_app.methods.method import Method, RunOptions
from fedmrn_app.methods.steering import FASTEST_DOWN, FASTEST_UP, Steering
from fedmrn_app.noise import DISTRIBUTIONS, Distribution, Noise
from fedmrn_app.wire.body import CODERS, Coder

LAYOUT = Layout(((200, 150), (40, 40), (12, 500)))
ZEROS = np.zeros(LAYOUT.count, np.float32)
KNOWN = Known(LAYOUT, ZEROS, ZEROS)
SIZES = np.array([0.004, 0.03, 0.0007])  # mean |update| of each tensor


def laplace(seed: int, sizes: NDArray[np.float64]) -> Float32Array:
    random = np.random.default_rng(seed)
    return np.concatenate(
        [random.laplace(0, size, count) for size, count in zip(sizes, LAYOUT.sizes, strict=True)]
    ).astype(np.float32)


def steered(recipe: type[FedMRN], bits: float = 0.4, noise: Noise | None = None) -> tuple[Method, Steering]:
    method = recipe().build(RunOptions(noise or Noise(), bits=bits))
    assert method.steering is not None
    return method, method.steering


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_scaled_noise_is_the_noise_of_each_scale(distribution: Distribution) -> None:
    scales = np.array([0.004, 0.1, 3.0], np.float32)
    noise = KNOWN.with_scales(scales).noise(Noise(distribution, 0.5), 9)
    for part, scale in zip(LAYOUT.slices, scales, strict=True):
        assert np.array_equal(noise[part], Noise(distribution, float(scale))(9, LAYOUT.count)[part])


@pytest.mark.parametrize("recipe", [FedMRN, FedMRNS])
def test_equal_scales_give_the_bytes_of_the_fixed_one(recipe: type[FedMRN]) -> None:
    codec, noise = steered(recipe, noise=Noise("uniform", 0.0078125))[0].codec, np.full(3, 0.0078125, np.float32)
    x = laplace(1, SIZES)
    body = codec.encode(x, KNOWN, 5, 0)
    assert codec.encode(x, KNOWN.with_scales(noise), 5, 0) == body
    assert np.array_equal(codec.decode(body, KNOWN.with_scales(noise), 5), codec.decode(body, KNOWN, 5))


@pytest.mark.parametrize(
    ("scales", "reason"),
    [
        (np.ones(2, np.float32), "2 noise scales for 3 tensors"),
        (np.array([1, np.nan, 1], np.float32), "out of range"),
        (np.array([1, 0, 1], np.float32), "out of range"),
        (np.array([1, np.inf, 1], np.float32), "out of range"),
        (np.array([1, -1, 1], np.float32), "out of range"),
    ],
)
def test_wrong_scales_are_refused(scales: Float32Array, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        KNOWN.with_scales(scales)


@pytest.mark.parametrize("recipe", [FedMRN, FedMRNS])
@pytest.mark.parametrize("coder", CODERS)
def test_masks_tell_how_large_updates_are_beside_the_noise(recipe: type[FedMRN], coder: Coder) -> None:
    """Whether they come coded or not: the next scales would give every tensor the same ratio."""
    method, steering = steered(recipe)
    assert isinstance(method.codec, NoiseMask)
    codec = replace(method.codec, coder=coder)
    state = steering.first(LAYOUT)
    state[:3] = (0.02, 0.09, 0.004)
    known = KNOWN.with_scales(steering.scales(state))
    told = codec.add(codec.encode(laplace(2, SIZES), known, 3, 0), known, 3, np.float32(1), ZEROS.copy())
    assert told is not None
    ratios = steering.scales(steering.next(state, LAYOUT, told, 0.5, 0.5)) / SIZES
    assert ratios.max() / ratios.min() < 1.15


@pytest.mark.parametrize("recipe", [FedMRN, FedMRNS])
@pytest.mark.parametrize("bits", [0.15, 0.3, 0.6])
def test_budget_is_met_from_the_fifth_round_on(recipe: type[FedMRN], bits: float) -> None:
    """While updates shrink by a tenth in each round, and one tensor's do not."""
    method, steering = steered(recipe)
    state, spent = steering.first(LAYOUT), []
    for number in range(1, 13):
        sizes = SIZES * np.array([0.9**number, 1, 0.9**number])
        known = KNOWN.with_scales(steering.scales(state))
        bodies, told = [], []
        for client in range(10):
            seed = 100 * number + client
            body = method.codec.encode(laplace(seed, sizes), known, seed, 0)
            shares = method.codec.add(body, known, seed, np.float32(1), ZEROS.copy())
            assert shares is not None
            told.append(shares)
            bodies.append(8 * len(body) / LAYOUT.count)
        spent.append(float(np.mean(bodies)))
        state = steering.next(state, LAYOUT, np.mean(told, 0), spent[-1], bits)
    assert np.abs(np.array(spent[4:]) / bits - 1).max() < 0.05, spent


def test_scales_change_gradually_and_stay_in_range() -> None:
    _, steering = steered(FedMRN)
    for shares, bits, factor in ((0.5, 0.1, FASTEST_UP), (1e-9, 0.9, 1 / FASTEST_DOWN)):
        state = steering.next(steering.first(LAYOUT), LAYOUT, np.full(3, shares, np.float32), 1 - bits, bits)
        np.testing.assert_allclose(steering.scales(state), 0.01 * factor, rtol=1e-6)
    state = steering.first(LAYOUT)
    for _ in range(200):
        state = steering.next(state, LAYOUT, np.zeros(3, np.float32), 0.5, 0.9)
    KNOWN.with_scales(steering.scales(state))  # are in range


def test_nothing_left_for_masks_makes_them_as_short_as_they_get() -> None:
    _, steering = steered(FedMRN)
    told = np.full(3, 0.1, np.float32)
    least, none = (steering.next(steering.first(LAYOUT), LAYOUT, told, 0.3, left) for left in (0.001, -0.2))
    assert np.array_equal(least, none)
