"""Theorem 1 of Li et al. 2024: the distance to the optimum that masked noise of a constant size leaves.

Usage: python scripts/theory/constant_noise.py [--steps 1000 4000 16000] [--seeds 4]

Least squares with an l2 term, 8 clients, 40 weights, exact gradients, S = 5, the step size eta_t = 2 / (mu (gamma + t))
of the theorem, signed masks by stochastic masking alone. The theorem has an excess loss of the order 1 / T with noise
of the size 2 eta_0 S G, held for ever. A signed mask has the variance n^2 - u^2 in each element, however small the
update u: each round of constant noise adds as much as the first, while smaller and smaller steps undo less and less of
it, and the loss grows. So Assumption 4, an error in proportion to the update's norm, does not hold. With noise of the
size 2 eta_t S G, which falls with the step size, the rate is there.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from rich.console import Console

from scripts.theory.slopes import slope_table
from scripts.theory.submodel_rates import problem

S = 5


def excess(steps: int, *, constant: bool, noise: bool, seed: int) -> float:
    """Return the excess loss after this number of local steps."""
    clients, random = problem(), np.random.default_rng(seed)
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


def masked(u: np.ndarray, size: float, random: np.random.Generator) -> np.ndarray:
    """Return noise under signed stochastic masks: size or -size, with the mean u where |u| <= size."""
    up = random.random(u.shape) < np.clip((u + size) / (2 * size), 0, 1)
    return np.where(up, size, -size)


def measure(steps: Sequence[int], seeds: int) -> dict[str, list[float]]:
    """Return the mean excess loss of each kind of noise, for each T."""
    kinds = {
        "no masks (FedAvg)": {"constant": False, "noise": False},
        "noise 2 eta_t S G": {"constant": False, "noise": True},
        "noise 2 eta_0 S G, the theorem's": {"constant": True, "noise": True},
    }
    return {
        name: [float(np.mean([excess(total, **kind, seed=seed) for seed in range(seeds)])) for total in steps]
        for name, kind in kinds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Constant noise in FedMRN's Theorem 1.")
    parser.add_argument("--steps", type=int, nargs="+", default=[1000, 4000, 16_000])
    parser.add_argument("--seeds", type=int, default=4)
    arguments = parser.parse_args()
    found = measure(arguments.steps, arguments.seeds)
    heads = (f"T = {total}" for total in arguments.steps)
    rows = ((name, values, "-1.00 or less") for name, values in found.items())
    Console(highlight=False, width=120).print(slope_table("excess loss", arguments.steps, heads, rows))


if __name__ == "__main__":
    main()
