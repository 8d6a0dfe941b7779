"""What results/papers/measured.md says of the theorems of FedMRN (Li et al. 2024)."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from fedmrn_app.kernels.counter_rng import step_key
from fedmrn_app.kernels.masked_step import masked_step
from fedmrn_app.kernels.masking import MaskKind, Vectors
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods import build_method
from fedmrn_app.methods.method import Method, RunOptions
from fedmrn_app.noise import Noise, generate_noise
from tests.theory.small_run import SmallRun, slope
from tests.theory.submodels import least_squares

S = 5  # local steps of a round


def masking_error(update: Float32Array, noise: Float32Array, signed: bool, progress: float, seed: int) -> float:
    """Return the squared norm of the forward pass's error at this progress, by the step that trains."""
    u, n, w, out = (torch.from_numpy(v.copy()) for v in (update, noise, np.zeros_like(update), update))
    masked_step(MaskKind(signed), Vectors(u, n, w, out))(0, torch.zeros_like(u), 0.0, progress, seed)
    return float((out.double() - u.double()).square().sum())


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("steps", "stated", "counted"), [(5, 0.6633, 0.7746), (20, 0.5990, 0.7246)])
def test_progressive_masking_has_the_factor_of_its_probabilities(
    steps: int, stated: float, counted: float, signed: bool
) -> None:
    """Proposition 1 puts the probability t / S into the square; the factor of q^2 is the mean of t / S itself."""
    t = np.arange(1, steps + 1)
    assert (stated, counted) == pytest.approx((np.sqrt((t**2).sum() / steps**3), np.sqrt(t.sum() / steps**2)), abs=5e-5)
    noise = generate_noise(1, 50_000, "uniform", 1.0)
    share = np.random.default_rng(0).random(noise.size, np.float32)  # updates that masked noise can express
    update = noise * (2 * share - 1 if signed else share)
    with_pm = [masking_error(update, noise, signed, number / steps, step_key(2, number)) for number in t.tolist()]
    without = [masking_error(update, noise, signed, 1.0, step_key(3, number)) for number in t.tolist()]
    assert np.sqrt(np.mean(with_pm) / np.mean(without)) == pytest.approx(counted, rel=0.01)


def masked(u: np.ndarray, size: float, random: np.random.Generator) -> np.ndarray:
    """Return noise under signed stochastic masks: size or -size, with the mean u where |u| <= size."""
    up = random.random(u.shape) < np.clip((u + size) / (2 * size), 0, 1)
    return np.where(up, size, -size)


def excess(steps: int, *, constant: bool, noise: bool = True, seed: int = 0) -> float:
    """Return the excess loss of least squares after T local steps of the size 2 / (mu (gamma + t)) of Theorem 1."""
    clients, random = least_squares(), np.random.default_rng(seed)
    count, _, features = clients.shape
    values = np.linalg.eigvalsh(clients.hessian)
    mu, gamma = values[0], max(8 * values[-1] / values[0], S) - 1
    w = np.zeros(features)
    largest = float(np.linalg.norm(clients.gradients(np.zeros((count, features))), axis=1).max())  # G, at the start
    for t in range(0, steps, S):
        lr = 2 / (mu * (gamma + t))
        size = 2 * (2 / (mu * gamma) if constant else lr) * S * largest
        u = np.zeros((count, features))
        for step in range(S):
            seen = masked(u, size, random) if noise else u
            u = u - 2 / (mu * (gamma + t + step)) * clients.gradients(w + seen)
        w = w + (masked(u, size, random) if noise else u).mean(0)
    return clients.excess(w)


def test_constant_noise_leaves_the_optimum_and_falling_noise_comes_nearer() -> None:
    """A signed mask has the variance n^2 - u^2 in each element, however small the update u is."""
    constant, falling = ([excess(steps, constant=kind) for steps in (500, 2000)] for kind in (True, False))
    assert constant[1] > 2 * constant[0]
    assert falling[1] < falling[0] / 2


@pytest.mark.slow
def test_theorem_1_holds_without_masks_and_with_falling_noise() -> None:
    """The documented excess losses at T = 1,000 and 10,000, means of four seeds."""
    stated = {
        (False, False): (1.944e-07, 1.843e-09), (False, True): (8.349e-02, 8.771e-03), (True, True): (25.60, 242.2),
    }  # fmt: skip
    for (constant, noise), values in stated.items():
        seeds = range(4 if noise else 1)
        found = [
            float(np.mean([excess(steps, constant=constant, noise=noise, seed=seed) for seed in seeds]))
            for steps in (1000, 10_000)
        ]
        assert found == pytest.approx(values, rel=1e-3), (constant, noise)


def gradients(steps: Sequence[int]) -> dict[str, list[float]]:
    """Return the mean squared gradient of an MLP on the digits for each T, as Theorem 2 has it, with L = 1.

    Signed masks by stochastic masking alone, the step size 1 / (L sqrt(T)) held through T local steps, Bernoulli noise
    of size 2 eta S G. G is the largest norm of 200 stochastic gradients at the start.
    """

    def fedmrns(size: float) -> Method:
        return build_method("fedmrns", {"masking": "sm"}, RunOptions(Noise("bernoulli", size), coder="packed"))

    run = SmallRun(2, (8,), 16)
    largest = run.largest_gradient()
    found: dict[str, list[float]] = {}
    for total in steps:
        lr = 1 / math.sqrt(total)
        noise = 2 * lr * S * largest
        methods = {
            "fedavg": build_method("fedavg", {}, RunOptions(Noise())), "fedmrns": fedmrns(noise),
            "a tenth of the noise": fedmrns(noise / 10),
        }  # fmt: skip
        for name, method in methods.items():
            found.setdefault(name, []).append(run.mean_squared_gradient(method, lr, S, total // S, 0))
    return found


@pytest.mark.slow
def test_gradients_of_masked_noise_vanish_with_longer_training() -> None:
    for values in gradients([50, 400]).values():
        assert slope([50, 400], values) < -0.1


@pytest.mark.long
def test_theorem_2_holds() -> None:
    lengths = [200, 800, 3200]
    found = gradients(lengths)
    slopes = {name: slope(lengths, values) for name, values in found.items()}
    assert slopes == pytest.approx({"fedmrns": -0.83, "fedavg": -0.53, "a tenth of the noise": -0.30}, abs=0.02)
    assert slope(lengths[1:], found["a tenth of the noise"][1:]) == pytest.approx(-0.49, abs=0.02)


def test_the_noise_of_theorem_2_makes_its_masking_error_as_large_as_the_model() -> None:
    """S steps with gradients of at most G make an update of at most eta S G, and the noise is 2 eta S G."""
    random, size = np.random.default_rng(0), 10_000
    update = random.normal(0, 1, size)
    update *= 1 / np.linalg.norm(update)  # eta S G = 1
    error = masked(update, 2.0, random) - update
    squared = float(np.square(error).sum() / np.square(update).sum())  # q^2 of Assumption 4
    assert squared >= size - 1
    assert squared == pytest.approx(4 * size - 1, rel=0.01)
