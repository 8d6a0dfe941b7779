"""Proposition 1 of Li et al. 2024: by which factor progressive masking makes the masking error smaller.

Usage: python scripts/theory/progressive_masking.py [--elements 100000] [--steps 1 5 20 100]

The error of a local step is what the forward pass sees less the update, by the very step that trains. At step t of S
an element is masked with probability t / S, else it is the update itself. Proposition 1 multiplies q^2, the squared
error over that of stochastic masking, by the mean of (t / S)^2, and so q by sqrt(sum t^2 / S^3), 0.577 for many steps.
Yet an element that is masked with probability t / S has the squared error in the share t / S of the cases: the
factor of q^2 is the mean of t / S itself, (S + 1) / 2S, and that of q 0.707.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fedmrn_app.kernels.counter_rng import step_key
from fedmrn_app.kernels.masked_step import masked_step
from fedmrn_app.kernels.masking import MaskKind, Vectors
from fedmrn_app.layout import Float32Array
from fedmrn_app.noise import generate_noise


def masking_error(update: Float32Array, noise: Float32Array, signed: bool, progress: float, seed: int) -> float:
    """Return the squared norm of the forward pass's error at this progress."""
    u, n, w, out = (torch.from_numpy(v.copy()) for v in (update, noise, np.zeros_like(update), update))
    masked_step(MaskKind(signed), Vectors(u, n, w, out))(0, torch.zeros_like(u), 0.0, progress, seed)
    return float((out.double() - u.double()).square().sum())


def measured_factor(steps: int, signed: bool, elements: int) -> float:
    """Return the factor of q: the root mean squared error over all steps, over that of stochastic masking."""
    noise = generate_noise(1, elements, "uniform", 1.0)
    share = np.random.default_rng(0).random(elements, np.float32)  # updates that masked noise can express
    update = noise * (2 * share - 1 if signed else share)
    with_pm = [masking_error(update, noise, signed, t / steps, step_key(2, t)) for t in range(1, steps + 1)]
    without = [masking_error(update, noise, signed, 1.0, step_key(3, t)) for t in range(1, steps + 1)]
    return float(np.sqrt(np.mean(with_pm) / np.mean(without)))


def factors(steps: int) -> tuple[float, float]:
    """Return the factors of q by Proposition 1 and by the probability of an element."""
    t = np.arange(1, steps + 1)
    return float(np.sqrt((t**2).sum() / steps**3)), float(np.sqrt(t.sum() / steps**2))


def main() -> None:
    parser = argparse.ArgumentParser(description="The factor of FedMRN's Proposition 1.")
    parser.add_argument("--elements", type=int, default=100_000)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 5, 20, 100])
    arguments = parser.parse_args()
    table = Table("S", "masks", "measured factor of q", "Proposition 1", "by the probability of an element")
    for steps in arguments.steps:
        for signed in (False, True):
            stated, counted = factors(steps)
            measured = measured_factor(steps, signed, arguments.elements)
            kind = "signed" if signed else "binary"
            table.add_row(str(steps), kind, f"{measured:.4f}", f"{stated:.4f}", f"{counted:.4f}")
    Console(highlight=False, width=120).print(table)


if __name__ == "__main__":
    main()
