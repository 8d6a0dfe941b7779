"""Theorems 2 and 4 of Deng, Qiao and Mahdavi: stationarity of the masked objective where the loss is not convex.

Usage: python scripts/theory/submodel_gradients.py [--rounds 100 400 1600] [--seeds 2]

The squared error of a sigmoid with an l2 term, 8 clients, 40 features, exact gradients, K = 5, weights held at random
or in shuffled windows of half the weights, the step size of the theorems, of the order 1 / sqrt(R K). Their bound on
the mean of |grad F_masked|^2 over the rounds is of the order 1 / sqrt(R K): a slope of -1/2 or steeper. Beside it
stands the mean of |grad F|^2 of the loss itself, which need not vanish.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from scripts.theory.slopes import slope
from scripts.theory.submodels import Clients, Masks, Vector, train

K, P, STEP = 5, 0.5, 100.0
MASKS = 200  # that stand for all random ones
POINTS = 40  # of a curve, of which the mean is taken


def squared_gradients(clients: Clients, w: Vector, halves: tuple[Vector, Vector]) -> tuple[float, float]:
    """Return |grad F_masked|^2, unbiased as the product of two halves' means, and |grad F|^2, at w (d,)."""
    count, _, features = clients.shape
    means = []
    for masks in halves:
        per_mask = [(m * clients.gradients(np.broadcast_to(m * w, (count, features)))).mean(0) for m in masks]
        means.append(np.mean(per_mask, 0))
    whole = clients.gradients(np.broadcast_to(w, (count, features))).mean(0)
    return float(means[0] @ means[1]), float(whole @ whole)


def measure(rounds: Sequence[int], seeds: int) -> dict[str, tuple[list[float], list[float]]]:
    """Return the mean squared gradients over the rounds for random and rolling masks, for each R."""
    clients = Clients.drawn("sigmoid", 8, 50, 40, l2=0.002)
    random = np.random.default_rng(5)
    drawn = (random.random((2, MASKS, 40)) < P).astype(float)
    found: dict[str, tuple[list[float], list[float]]] = {}
    for masking in ("random", "rolling"):
        for total in rounds:
            # most happens in the first rounds
            rounds_seen = np.unique(np.geomspace(1, total, POINTS).astype(int)) - 1
            values = []
            for seed in range(seeds):
                masks = Masks(clients, seed, masking=masking, windows="shuffled", capacities=[P])
                both = np.array([masks.of_round(number)[0] for number in (1, 2)])
                halves = (drawn[0], drawn[1]) if masking == "random" else (both, both)
                seen: list[Vector] = []
                train(clients, masks.of_round, STEP / math.sqrt(total * K), total, K, each=seen.append)
                curves = np.array([squared_gradients(clients, seen[number], halves) for number in rounds_seen])
                values.append(np.trapezoid(curves, rounds_seen, axis=0) / (total - 1))
            masked, whole = np.mean(values, 0)
            of_masked, of_whole = found.setdefault(masking, ([], []))
            of_masked.append(float(masked))
            of_whole.append(float(whole))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Theorems 2 and 4 on sub-models.")
    parser.add_argument("--rounds", type=int, nargs="+", default=[100, 400, 1600])
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    table = Table("mean over the rounds", "masks", *(f"R = {r}" for r in arguments.rounds), "slope", "theorem")
    for masking, (masked, whole) in measure(arguments.rounds, arguments.seeds).items():
        for name, values, expected in (("|grad F_masked|^2", masked, "-0.50 or less"), ("|grad F|^2", whole, "")):
            cells = [f"{v:.3e}" for v in values]
            table.add_row(name, masking, *cells, f"{slope(arguments.rounds, values):.2f}", expected)
    Console(highlight=False, width=120).print(table)


if __name__ == "__main__":
    main()
