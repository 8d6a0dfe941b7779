"""The checks against theory in a short form: what they measure is near what their first lines say."""

import math

import numpy as np
import pytest

from scripts.theory import (
    constant_noise,
    drive_scales,
    fedmrn_rate,
    fedscalar_rate,
    submodel_gradients,
    submodel_rates,
    submodel_stability,
)
from scripts.theory.progressive_masking import factors, measured_factor
from scripts.theory.slopes import slope
from scripts.theory.submodels import Clients, Masks, output_step, train


@pytest.mark.parametrize("signed", [False, True])
def test_progressive_masking_has_the_factor_of_its_probabilities(signed: bool) -> None:
    stated, counted = factors(10)
    assert (stated, counted) == pytest.approx((math.sqrt(385 / 1000), math.sqrt(55 / 100)))
    measured = measured_factor(10, signed, 50_000)
    assert measured == pytest.approx(counted, rel=0.01)
    assert measured > 1.1 * stated


@pytest.mark.slow
def test_gradients_of_masked_noise_vanish_with_longer_training() -> None:
    for values in fedmrn_rate.measure([50, 400], 1.0, 1).values():
        assert slope([50, 400], values) < -0.1


def test_gradients_of_projected_updates_vanish_with_longer_training() -> None:
    for values in fedscalar_rate.measure([100, 800], 1).values():
        assert slope([100, 800], values) < -0.4


def test_constant_noise_leaves_the_optimum_and_falling_noise_comes_nearer() -> None:
    constant, falling = (
        [constant_noise.excess(steps, constant=kind, noise=True, seed=0) for steps in (500, 2000)]
        for kind in (True, False)
    )
    assert constant[1] > 2 * constant[0]
    assert falling[1] < falling[0] / 2


def test_errors_of_unbiased_estimates_cancel() -> None:
    biased = [drive_scales.mean_error("least_mse", 4096, clients) for clients in (1, 20)]
    unbiased = [drive_scales.mean_error("unbiased", 4096, clients) for clients in (1, 20)]
    assert biased[0] < unbiased[0]
    assert unbiased[1] == pytest.approx(unbiased[0] / 20, rel=0.1)
    assert biased[1] > 4 * unbiased[1]


def test_rolling_windows_converge_with_the_square_of_the_rounds_and_random_masks_do_not() -> None:
    found = submodel_rates.distances(submodel_rates.problem(), [64, 512], 2)
    assert slope([64, 512], found["rolling"]) == pytest.approx(-2, abs=0.5)
    assert slope([64, 512], found["random"]) == pytest.approx(-0.9, abs=0.4)


def test_residuals_and_windows() -> None:
    clients, shares = submodel_rates.problem(), [0.01, 0.1]
    assert slope(shares, submodel_rates.residuals(clients, shares)) == pytest.approx(2, abs=0.1)
    held = [submodel_rates.reached(clients, count, 10, spread=False) for count in (4, 20, 40)]
    assert [share for share, _ in held] == pytest.approx([13 / 40, 29 / 40, 1])
    assert held[0][1] > held[1][1] > 5 * held[2][1]
    assert submodel_rates.reached(clients, 4, 10, spread=True)[0] == 1


def test_masked_gradients_vanish_where_the_loss_is_not_convex() -> None:
    for masked, whole in submodel_gradients.measure([50, 200], 1).values():
        assert slope([50, 200], masked) < -0.3
        assert whole[-1] > masked[-1]


def test_one_row_matters_less_with_more_rows_and_smaller_parts() -> None:
    for masking in ("random", "rolling"):
        few, many = (submodel_stability.distance(masking, 0.5, rows, 2) for rows in (25, 100))
        assert slope([25, 100], [few, many]) == pytest.approx(-0.5, abs=0.15)
        assert submodel_stability.distance(masking, 0.25, 25, 2) < 0.7 * few


def test_optima_are_where_training_and_the_output_step_stay() -> None:
    clients = Clients.drawn("quadratic", 3, 30, 12, l2=0.1)
    masks = Masks(clients, masking="rolling", windows="shuffled", capacities=[0.25])
    windows = [masks.of_round(number) for number in range(1, 5)]
    optimum = clients.masked_optimum(np.array([window[0] for window in windows]))
    np.testing.assert_allclose(output_step(clients, windows, 1.0, optimum), optimum, atol=1e-12)
    whole = np.asarray(np.linalg.solve(clients.hessian, clients.linear), np.float64)
    full = Masks(clients, masking="full")
    np.testing.assert_allclose(train(clients, full.of_round, 0.1, 3, 1, whole), whole, atol=1e-12)
    np.testing.assert_allclose(clients.random_optimum(1.0), whole, atol=1e-12)
    drawn = (np.random.default_rng(0).random((20_000, 12)) < 0.7).astype(float)
    np.testing.assert_allclose(clients.masked_optimum(drawn), clients.random_optimum(0.7), atol=0.02)
