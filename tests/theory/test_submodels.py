"""What results/papers/measured.md says of the theorems on sub-model training (Deng, Qiao and Mahdavi)."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from tests.theory.small_run import slope
from tests.theory.submodels import Clients, Masks, Vector, least_squares, output_step, train

K, P = 5, 0.5
STEP = 100.0  # of Theorems 2 and 4, over sqrt(R K)
DRAWN = 200  # masks that stand for all random ones
POINTS = 40  # of a curve, of which the mean is taken


def windows(masks: Masks, count: int) -> list[Vector]:
    """Return the windows that clients of one capacity rotate through."""
    return [masks.of_round(number) for number in range(1, count + 1)]


def distances(rounds: Sequence[int], seeds: int) -> dict[str, list[float]]:
    """Return the squared distance to the masked optimum after this number of rounds, with the theorems' step sizes."""
    clients = least_squares()
    mu, count = float(np.linalg.eigvalsh(clients.hessian)[0]), math.ceil(1 / P)
    found: dict[str, list[float]] = {"random": [], "rolling": []}
    shuffled = np.array([m[0] for m in windows(Masks(clients, capacities=[P]), count)])
    targets = {"random": clients.random_optimum(P), "rolling": clients.masked_optimum(shuffled)}
    for total in rounds:
        rates = {
            "random": math.log((K * total) ** 2) / (P * mu * K * total),
            "rolling": math.log((total // count) ** 2) / (mu * K * total),
        }
        for masking, lr in rates.items():
            made = [Masks(clients, s, masking=masking, windows="shuffled", capacities=[P]) for s in range(seeds)]
            ends = [train(clients, masks.of_round, lr, total, K) for masks in made]
            found[masking].append(float(np.mean([np.square(end - targets[masking]).sum() for end in ends])))
    return found


@pytest.mark.slow
def test_rolling_windows_converge_with_the_square_of_the_rounds_and_random_masks_do_not() -> None:
    found = distances([64, 512], 2)
    assert slope([64, 512], found["rolling"]) == pytest.approx(-2, abs=0.5)
    assert slope([64, 512], found["random"]) == pytest.approx(-0.9, abs=0.4)


@pytest.mark.slow
def test_documented_distances() -> None:
    found = distances([256, 1024], 2)
    assert found["random"] == pytest.approx([5.150e-04, 1.503e-04], rel=1e-3)
    assert found["rolling"] == pytest.approx([8.169e-07, 6.955e-08], rel=1e-3)


def reached(count: int, size: int, *, spread: bool) -> tuple[float, float]:
    """Return the share of weights that R windows hold, and the excess loss at the minimum of their objective.

    Mask j begins at weight j as in the paper, or, `spread`, at j d / R as in the package.
    """
    clients = least_squares()
    features = clients.shape[2]
    masks = np.zeros((count, features))
    for j, mask in enumerate(masks):
        mask[((j * features // count if spread else j) + np.arange(size)) % features] = 1
    return float(masks.any(0).mean()), clients.excess(clients.masked_optimum(masks))


def test_residuals_and_windows() -> None:
    """The residual error falls with the square of 1 - p, and R windows that begin one after the other hold R + s."""
    clients, shares = least_squares(), [0.01, 0.02, 0.05, 0.1]
    residuals = [clients.excess(clients.random_optimum(1 - share)) for share in shares]
    assert slope(shares, residuals) == pytest.approx(1.97, abs=0.01)
    stated = {4: (0.325, 0.124), 8: (0.425, 0.104), 20: (0.725, 0.025)}
    for count, values in stated.items():
        assert reached(count, 10, spread=False) == pytest.approx(values, abs=5e-4)
        share, excess = reached(count, 10, spread=True)
        assert share == 1
        assert 0.0015 < excess < 0.0035


def squared_gradients(clients: Clients, w: Vector, halves: tuple[Vector, Vector]) -> tuple[float, float]:
    """Return |grad F_masked|^2, unbiased as the product of two halves' means, and |grad F|^2, at w (d,)."""
    count, _, features = clients.shape
    means = []
    for masks in halves:
        per_mask = [(m * clients.gradients(np.broadcast_to(m * w, (count, features)))).mean(0) for m in masks]
        means.append(np.mean(per_mask, 0))
    whole = clients.gradients(np.broadcast_to(w, (count, features))).mean(0)
    return float(means[0] @ means[1]), float(whole @ whole)


def mean_gradients(masking: str, rounds: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return the means over the rounds of |grad F_masked|^2 and of |grad F|^2, for each R; F is not convex."""
    clients = Clients.drawn("sigmoid", 8, 50, 40, l2=0.002)
    drawn = (np.random.default_rng(5).random((2, DRAWN, 40)) < P).astype(float)
    of_masked, of_whole = [], []
    for total in rounds:
        masks = Masks(clients, masking=masking, windows="shuffled", capacities=[P])
        both = np.array([masks.of_round(number)[0] for number in (1, 2)])
        halves = (drawn[0], drawn[1]) if masking == "random" else (both, both)
        seen: list[Vector] = []
        train(clients, masks.of_round, STEP / math.sqrt(total * K), total, K, each=seen.append)
        looked = np.unique(np.geomspace(1, total, POINTS).astype(int)) - 1  # most happens in the first rounds
        curves = np.array([squared_gradients(clients, seen[number], halves) for number in looked])
        masked, whole = np.trapezoid(curves, looked, axis=0) / (total - 1)
        of_masked.append(float(masked))
        of_whole.append(float(whole))
    return of_masked, of_whole


@pytest.mark.slow
@pytest.mark.parametrize("masking", ["random", "rolling"])
def test_masked_gradients_vanish_where_the_loss_is_not_convex(masking: str) -> None:
    masked, whole = mean_gradients(masking, [50, 200])
    assert slope([50, 200], masked) < -0.3
    assert whole[-1] > masked[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("masking", "stated"), [pytest.param("random", -0.52, marks=pytest.mark.long), ("rolling", -0.51)]
)
def test_theorems_2_and_4_hold(masking: str, stated: float) -> None:
    rounds = [100, 400, 1600]
    masked, whole = mean_gradients(masking, rounds)
    assert slope(rounds, masked) == pytest.approx(stated, abs=0.01)
    assert slope(rounds, whole) > slope(rounds, masked)


def distance(masking: str, share: float, rows: int, pairs: int) -> float:
    """Return the mean distance of the outputs, after the output step, of data sets that differ in one row."""
    rounds, smoothness = 60, 0.25

    def output(clients: Clients, seed: int) -> Vector:
        masks = Masks(clients, seed, masking=masking, windows="shuffled", capacities=[share])
        end = train(clients, masks.of_round, math.sqrt(4 * rows) / (rounds * K), rounds, K)
        count = math.ceil(1 / share) if masking == "rolling" else 1
        return output_step(clients, [masks.of_round(rounds + 1 + j) for j in range(count)], smoothness, end)

    found = []
    for seed in range(pairs):
        one, other = (Clients.drawn("logistic", 4, rows, 40, l2=0.0, seed=s) for s in (seed, 1000 + seed))
        a, b = one.a.copy(), one.b.copy()
        a[0, 0], b[0, 0] = other.a[0, 0], other.b[0, 0]
        found.append(np.linalg.norm(output(one, seed) - output(Clients(a, b, "logistic", 0.0), seed)))
    return float(np.mean(found))


@pytest.mark.parametrize("masking", ["random", "rolling"])
def test_one_row_matters_less_with_more_rows_and_smaller_parts(masking: str) -> None:
    few, many = (distance(masking, 0.5, rows, 2) for rows in (25, 100))
    assert slope([25, 100], [few, many]) == pytest.approx(-0.5, abs=0.15)
    assert distance(masking, 0.25, 25, 2) < 0.7 * few


@pytest.mark.slow
def test_theorems_5_and_6_hold() -> None:
    stated = {1.0: 0.0635, 0.5: 0.0328, 0.25: 0.0162, 0.125: 0.0085}
    rows = [25, 100, 400]
    for share, first in stated.items():
        found = [distance("random", share, count, 4) for count in rows]
        assert found[0] == pytest.approx(first, abs=5e-5)
        assert slope(rows, found) == pytest.approx(-0.5, abs=0.025)


def test_optima_are_where_training_and_the_output_step_stay() -> None:
    clients = Clients.drawn("quadratic", 3, 30, 12, l2=0.1)
    masks = Masks(clients, masking="rolling", windows="shuffled", capacities=[0.25])
    parts = windows(masks, 4)
    optimum = clients.masked_optimum(np.array([window[0] for window in parts]))
    np.testing.assert_allclose(output_step(clients, parts, 1.0, optimum), optimum, atol=1e-12)
    whole = np.asarray(np.linalg.solve(clients.hessian, clients.linear), np.float64)
    full = Masks(clients, masking="full")
    np.testing.assert_allclose(train(clients, full.of_round, 0.1, 3, 1, whole), whole, atol=1e-12)
    np.testing.assert_allclose(clients.random_optimum(1.0), whole, atol=1e-12)
    drawn = (np.random.default_rng(0).random((20_000, 12)) < 0.7).astype(float)
    np.testing.assert_allclose(clients.masked_optimum(drawn), clients.random_optimum(0.7), atol=0.02)


def test_windows_lower_the_convexity_that_proposition_2_keeps() -> None:
    """With f(w) = |w|^2 / 2 the Hessian of the masked objective is the mean of the masks, which is not the identity."""
    clients = least_squares()
    masks = np.array([m[0] for m in windows(Masks(clients, windows="shuffled", capacities=[0.25]), 4)])
    hessian = np.mean([np.diag(mask) @ np.diag(mask) for mask in masks], 0)
    assert np.linalg.eigvalsh(hessian) == pytest.approx(np.full(len(hessian), 0.25))


def test_random_masks_differ_as_often_as_lemma_12_has_it_and_not_theorem_5() -> None:
    random = np.random.default_rng(0)
    for first, second in ((0.5, 0.25), (0.9, 0.8), (1.0, 1.0)):
        differ = float(np.mean((random.random(200_000) < first) != (random.random(200_000) < second)))
        assert differ == pytest.approx(first + second - 2 * first * second, abs=0.01)
        assert abs(differ - (first + second - first * second)) > 0.1
