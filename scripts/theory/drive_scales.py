"""DRIVE's two scales: the error of one client's estimate, and of the mean of many, each over the squared norm.

Usage: python scripts/theory/drive_scales.py [--elements 65536] [--clients 1 10 100]

All clients have the same normal update, and each rotates it by a seed of its own. The least-MSE scale has the smaller
error alone, 1 - 2 / pi; that of the unbiased one, pi / 2 - 1, falls with the number of clients, and the other's hardly.
"""

from __future__ import annotations

import argparse
from typing import get_args

import numpy as np
from rich.console import Console
from rich.table import Table

from fedmrn_app.layout import Layout
from fedmrn_app.methods.drive import DriveScale, DriveSigns
from fedmrn_app.methods.shared_context import SharedContext


def mean_error(scale: DriveScale, elements: int, clients: int) -> float:
    """Return the squared error of the mean of the clients' estimates, over the squared norm."""
    x = np.random.default_rng(0).standard_normal(elements, np.float32)
    codec, known = DriveSigns(scale), SharedContext(Layout(((elements,),)), x, x)
    total = np.zeros(elements)
    for seed in range(clients):
        total += codec.decode(codec.encode(x, known, seed, 0), known, seed)
    return float(np.square(total / clients - x).sum() / np.square(x).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description="The error of DRIVE's scales.")
    parser.add_argument("--elements", type=int, default=65536)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 10, 100])
    arguments = parser.parse_args()
    table = Table("normalised squared error", *(f"mean of {count}" for count in arguments.clients))
    for scale in get_args(DriveScale):
        errors = [mean_error(scale, arguments.elements, count) for count in arguments.clients]
        table.add_row(scale, *(f"{error:.4f}" for error in errors))
    Console(highlight=False, width=120).print(table)


if __name__ == "__main__":
    main()
