"""What results/papers/measured.md says of FedScalar's Theorem 3.1; tests/methods has its Proposition 3.1."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from fedmrn_app.methods.fedscalar import Direction, Projection
from fedmrn_app.seeds import derive_seed
from tests.theory.small_run import slope
from tests.theory.submodels import Clients

S, STEP = 5, 10.0


def mean_squared_gradient(clients: Clients, direction: Direction | None, rounds: int, seed: int) -> float:
    """Train from zero, by FedAvg without a direction; return the mean of |grad f(x_k)|^2 over the rounds."""
    count, _, features = clients.shape
    lr, x, total = STEP / math.sqrt(rounds), np.zeros(features), 0.0
    for number in range(rounds):
        local = np.broadcast_to(x, (count, features))
        for step in range(S):
            gradients = clients.gradients(local)
            if step == 0:
                total += float(np.square(gradients.mean(0)).sum())
            local = local - lr * gradients
        mean = (local - x).mean(0)
        if direction is not None:
            v = Projection(direction).vector(derive_seed(seed, "noise", number), features).astype(np.float64)
            mean = (mean @ v) * v
        x = x + mean
    return total / rounds


def slope_of(direction: Direction | None, rounds: Sequence[int], seeds: int) -> float:
    clients = Clients.drawn("sigmoid", 8, 50, 40, l2=0.002)
    found = [
        float(np.mean([mean_squared_gradient(clients, direction, count, seed) for seed in range(seeds)]))
        for count in rounds
    ]
    return slope(rounds, found)


@pytest.mark.parametrize("direction", [None, "rademacher", "normal"])
def test_gradients_of_projected_updates_vanish_with_longer_training(direction: Direction | None) -> None:
    assert slope_of(direction, [100, 800], 1) < -0.4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("direction", "stated"),
    [(None, -0.50), ("rademacher", -0.61), pytest.param("normal", -0.61, marks=pytest.mark.long)],
)
def test_theorem_3_1_holds(direction: Direction | None, stated: float) -> None:
    assert slope_of(direction, [400, 1600, 6400], 2) == pytest.approx(stated, abs=0.01)


def test_clients_that_share_a_vector_add_what_equation_a_20_drops() -> None:
    """E|d|^2 has a term for each pair of clients, because all of them are projected onto the same vector."""
    random, clients, size = np.random.default_rng(0), 10, 50
    deltas = random.normal(1, 0.1, (clients, size))
    vectors = random.normal(0, 1, (20_000, size))
    steps = (vectors @ deltas.mean(0))[:, None] * vectors
    measured = float(np.square(steps).sum(1).mean())
    stated = (size + 2) * np.square(deltas).sum() / clients**2  # (A.20): the clients' own terms alone
    assert measured == pytest.approx((size + 2) * np.square(deltas.mean(0)).sum(), rel=0.05)
    assert measured > 0.9 * clients * stated
