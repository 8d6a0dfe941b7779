"""Theorems 5 and 6 of Deng, Qiao and Mahdavi: how far one sample moves what sub-model training ends with.

Usage: python scripts/theory/submodel_stability.py [--rows 25 100 400] [--pairs 10]

Logistic regression, 4 clients of n rows and 40 features. One row of one client is drawn again, both data sets are
trained on with the same masks, and the distance of the two outputs, after the output step, is averaged over pairs.
K = 5, 60 rounds, the step size sqrt(N n) / (R K) of the theorems. Their bounds are of the order 1 / sqrt(N n), a slope
of -1/2 or steeper, and smaller for smaller p or windows.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from scripts.theory.slopes import slope
from scripts.theory.submodels import Clients, Masks, Vector, output_step, train

K, ROUNDS, SMOOTHNESS = 5, 60, 0.25
SHARES = (1.0, 0.5, 0.25, 0.125)


def output(clients: Clients, masking: str, share: float, seed: int) -> Vector:
    """Return the result of training, with the output step."""
    count, rows, _ = clients.shape
    masks = Masks(clients, seed, masking=masking, windows="shuffled", capacities=[share])
    end = train(clients, masks.of_round, math.sqrt(count * rows) / (ROUNDS * K), ROUNDS, K)
    windows = math.ceil(1 / share) if masking == "rolling" else 1
    return output_step(clients, [masks.of_round(ROUNDS + 1 + j) for j in range(windows)], SMOOTHNESS, end)


def distance(masking: str, share: float, rows: int, pairs: int) -> float:
    """Return the mean distance of the outputs of data sets that differ in one row."""
    found = []
    for seed in range(pairs):
        one = Clients.drawn("logistic", 4, rows, 40, l2=0.0, seed=seed)
        other = Clients.drawn("logistic", 4, rows, 40, l2=0.0, seed=1000 + seed)
        a, b = one.a.copy(), one.b.copy()
        a[0, 0], b[0, 0] = other.a[0, 0], other.b[0, 0]
        ends = [output(c, masking, share, seed) for c in (one, Clients(a, b, "logistic", 0.0))]
        found.append(np.linalg.norm(ends[0] - ends[1]))
    return float(np.mean(found))


def main() -> None:
    parser = argparse.ArgumentParser(description="Theorems 5 and 6 on sub-models.")
    parser.add_argument("--rows", type=int, nargs="+", default=[25, 100, 400])
    parser.add_argument("--pairs", type=int, default=10)
    arguments = parser.parse_args()
    rows: Sequence[int] = arguments.rows
    table = Table("masks", "share held", *(f"n = {n}" for n in rows), "slope", "theorem", title="|w-hat - w-hat'|")
    for masking in ("random", "rolling"):
        for share in SHARES:
            values = [distance(masking, share, n, arguments.pairs) for n in rows]
            cells = [f"{v:.4f}" for v in values]
            table.add_row(masking, f"{share:g}", *cells, f"{slope(list(rows), values):.2f}", "-0.50 or less")
    Console(highlight=False, width=120).print(table)


if __name__ == "__main__":
    main()
