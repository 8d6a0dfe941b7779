"""Theorems 1 and 3 of Deng, Qiao and Mahdavi: how fast sub-model training converges, to where, and what is left.

Usage: python scripts/theory/submodel_rates.py [--rounds 256 1024 4096] [--seeds 8]

Least squares with an l2 term, 8 clients, 40 weights, exact gradients (so delta = 0), K = 5. Printed are

- the squared distance to the optimum of the masked objective over the number of rounds, with the theorems' step sizes.
  With delta = 0, Theorem 1 has R^-2 for random masks; what a new mask in each round adds to the mean of the
  clients has a variance, though, which falls with 1 / (N R) only. Theorem 3 has T^-2 for windows in a shuffled order;
- the excess loss at that optimum over 1 - p: the theorems' residual error is a bound that is linear in it;
- the loss before and after the output step;
- R against d: mask j of Algorithm 2 begins at j = 1 .. R, so that of d weights only the first R + s are ever held.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from scripts.theory.slopes import slope_table
from scripts.theory.submodels import Clients, Masks, Vector, output_step, train

K, P = 5, 0.5


def problem() -> Clients:
    """Return a problem with dependent features and a condition number for which R >= kappa log(...) holds early."""
    clients = Clients.drawn("quadratic", 8, 200, 40, l2=0.0)
    own = math.sqrt(40) * clients.a
    return Clients(own + own[:, :, :1] / 3, clients.b, "quadratic", l2=1.0)  # else masks would change no optimum


def windows(masks: Masks, count: int) -> list[Vector]:
    """Return the windows that clients of one capacity rotate through."""
    return [masks.of_round(number) for number in range(1, count + 1)]


def distances(clients: Clients, rounds: Sequence[int], seeds: int) -> dict[str, list[float]]:
    """Return the squared distance to the masked optimum after this number of rounds, random and rolling."""
    mu = float(np.linalg.eigvalsh(clients.hessian)[0])
    found: dict[str, list[float]] = {"random": [], "rolling": []}
    count = math.ceil(1 / P)
    for total in rounds:
        lr = math.log((K * total) ** 2) / (P * mu * K * total)
        target = clients.random_optimum(P)
        ends = [
            train(clients, Masks(clients, seed, masking="random", capacities=[P]).of_round, lr, total, K)
            for seed in range(seeds)
        ]
        found["random"].append(float(np.mean([np.square(end - target).sum() for end in ends])))
        epochs = total // count
        lr = math.log(epochs**2) / (mu * K * total)
        target = clients.masked_optimum(np.array([m[0] for m in windows(Masks(clients, capacities=[P]), count)]))
        ends = [
            train(clients, Masks(clients, seed, windows="shuffled", capacities=[P]).of_round, lr, total, K)
            for seed in range(seeds)
        ]
        found["rolling"].append(float(np.mean([np.square(end - target).sum() for end in ends])))
    return found


def residuals(clients: Clients, shares: Sequence[float]) -> list[float]:
    """Return the excess loss at w*(p) for each 1 - p."""
    return [clients.excess(clients.random_optimum(1 - share)) for share in shares]


def reached(clients: Clients, count: int, size: int, *, spread: bool) -> tuple[float, float]:
    """Return the share of weights that R windows hold, and the excess loss at the minimum of their objective.

    Mask j begins at weight j as in the paper, or, `spread`, at j d / R as in the package.
    """
    features = clients.shape[2]
    starts = [j * features // count if spread else j for j in range(count)]
    masks = np.zeros((count, features))
    for mask, start in zip(masks, starts, strict=True):
        mask[(start + np.arange(size)) % features] = 1
    return float(masks.any(0).mean()), clients.excess(clients.masked_optimum(masks))


def main() -> None:
    parser = argparse.ArgumentParser(description="Theorems 1 and 3 on sub-models.")
    parser.add_argument("--rounds", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--seeds", type=int, default=8)
    arguments = parser.parse_args()
    console, clients = Console(highlight=False, width=120), problem()
    found = distances(clients, arguments.rounds, arguments.seeds)
    lengths = (f"{r} rounds" for r in arguments.rounds)
    rows = ((name, values, "-2, but for logs") for name, values in found.items())
    console.print(slope_table("|w - masked optimum|^2", arguments.rounds, lengths, rows))
    shares = [0.01, 0.02, 0.05, 0.1]
    left_out = (f"1 - p = {s}" for s in shares)
    residual = ("random", residuals(clients, shares), "at least 1")
    console.print(slope_table("excess loss at w*(p)", shares, left_out, [residual]))
    table = Table("excess loss after 64 rounds, p = 0.5", "of w", "of w-hat", "at the masked optimum")
    largest = float(np.linalg.eigvalsh(clients.hessian)[-1])
    for masking in ("random", "rolling"):
        masks = Masks(clients, masking=masking, windows="shuffled", capacities=[P])
        end = train(clients, masks.of_round, 0.02, 64, K)
        drawn = [masks.of_round(65)] if masking == "random" else windows(masks, 2)
        optimum = clients.random_optimum(P) if masking == "random" else clients.masked_optimum(np.vstack(drawn))
        hat = output_step(clients, drawn, 1 / largest, end)
        table.add_row(masking, *(f"{clients.excess(w):.4f}" for w in (end, hat, optimum)))
    console.print(table)
    heads = ("held, starts 1..R", "excess loss", "held, starts spread", "excess loss")
    table = Table("R windows of 10 of 40 weights", *heads)
    for count in (4, 8, 20, 40):
        cells = [f"{v:.3f}" for spread in (False, True) for v in reached(clients, count, 10, spread=spread)]
        table.add_row(f"R = {count}", *cells)
    console.print(table)


if __name__ == "__main__":
    main()
