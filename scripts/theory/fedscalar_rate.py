"""Theorem 3.1 of FedScalar: how the mean squared gradient falls with K, on a small problem that is not convex.

Usage: python scripts/theory/fedscalar_rate.py [--rounds 400 1600 6400] [--seeds 2]

The squared error of a sigmoid with an l2 term, 8 clients that all take part, 40 features, exact gradients, S = 5 local
steps, a step size of the order 1 / sqrt(K) held through K rounds; the random vectors are those of the package. The
bound on the mean of |grad f(x_k)|^2 is of the order 1 / sqrt(K): a slope of -1/2 or steeper. Its last term, of which
the random vector is the reason, grows with d; FedAvg has the same without it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import numpy as np
from rich.console import Console

from fedmrn_app.methods.fedscalar import Direction, Projection
from fedmrn_app.seeds import derive_seed
from scripts.theory.slopes import slope_table
from scripts.theory.submodels import Clients

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


def measure(rounds: Sequence[int], seeds: int) -> dict[str, list[float]]:
    """Return the mean squared gradient of each method, for each K."""
    clients = Clients.drawn("sigmoid", 8, 50, 40, l2=0.002)
    methods: dict[str, Direction | None] = {
        "FedAvg": None,
        "FedScalar, Rademacher": "rademacher",
        "FedScalar, normal": "normal",
    }
    return {
        name: [
            float(np.mean([mean_squared_gradient(clients, direction, count, seed) for seed in range(seeds)]))
            for count in rounds
        ]
        for name, direction in methods.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="The rate of FedScalar's Theorem 3.1.")
    parser.add_argument("--rounds", type=int, nargs="+", default=[400, 1600, 6400])
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    found = measure(arguments.rounds, arguments.seeds)
    heads = (f"K = {count}" for count in arguments.rounds)
    rows = ((name, values, "-0.50 or less") for name, values in found.items())
    table = slope_table("mean of |grad f|^2", arguments.rounds, heads, rows, last="expected")
    Console(highlight=False, width=120).print(table)


if __name__ == "__main__":
    main()
