"""Theorem 2 of Li et al. 2024: how the mean squared gradient of FedMRNS falls with T, on a small non-convex problem.

Usage: python scripts/theory/fedmrn_rate.py [--steps 200 800 3200] [--smoothness 1] [--seeds 1]

As in the theorem: signed masks by stochastic masking alone (`masking=sm`), the step size 1 / (L sqrt(T)) held through T
local steps, S = 5 in a round, Bernoulli noise of size 2 eta S G. Its bound on the mean of |grad F|^2 over the steps,
here over the global models of the rounds, is of order 1 / sqrt(T): on a log-log scale a slope of -1/2 or steeper. An
MLP of 8 hidden units on the digits, two clients. L is a number that is given, for nobody knows it; G is the largest
norm of 200 stochastic gradients at the start. FedAvg, which the theorem covers with q = 0, stands beside it, and
FedMRNS with noise of a tenth of that size: the noise's part of the mean goes with its square.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import numpy as np
import torch
from rich.console import Console

from fedmrn_app.methods import build_method
from fedmrn_app.methods.method import Method, RunOptions
from fedmrn_app.noise import Noise
from scripts.theory.slopes import slope_table
from scripts.theory.small_run import SmallRun

S = 5


def fedmrns(size: float) -> Method:
    """Return FedMRNS with stochastic masking only, and noise of one size."""
    return build_method("fedmrns", {"masking": "sm"}, RunOptions(Noise("bernoulli", size), coder="packed"))


def measure(steps: Sequence[int], smoothness: float, seeds: int) -> dict[str, list[float]]:
    """Return the mean squared gradient of each method, for each T."""
    run = SmallRun(2, (8,), 16)
    largest = run.largest_gradient()
    found: dict[str, list[float]] = {}
    for total in steps:
        lr = 1 / (smoothness * math.sqrt(total))
        noise = 2 * lr * S * largest
        methods = {
            "FedAvg": build_method("fedavg", {}, RunOptions(Noise())),
            "FedMRNS, noise 2 eta S G": fedmrns(noise),
            "FedMRNS, a tenth of it": fedmrns(noise / 10),
        }
        for name, method in methods.items():
            runs = [run.mean_squared_gradient(method, lr, S, total // S, seed) for seed in range(seeds)]
            found.setdefault(name, []).append(float(np.mean(runs)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="The rate of FedMRN's Theorem 2.")
    parser.add_argument("--steps", type=int, nargs="+", default=[200, 800, 3200])
    parser.add_argument("--smoothness", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(arguments.steps, arguments.smoothness, arguments.seeds)
    heads = (f"T = {total}" for total in arguments.steps)
    rows = ((name, values, "-0.50 or less") for name, values in found.items())
    table = slope_table("mean of |grad F|^2", arguments.steps, heads, rows, last="expected", form=".4e")
    Console(highlight=False, width=120).print(table)


if __name__ == "__main__":
    main()
