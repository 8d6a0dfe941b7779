"""Measure the variance of FedScalar's aggregated update for both kinds of random vector, beside what theory predicts.

Usage: python scripts/fedscalar_variance.py [--draws 2000000] [OVERRIDE ...]

The clients of `experiment=fedscalar_digits` train one round; their updates stay fixed while the vector is drawn again
and again. With m the mean update, the aggregated update <m, v> v has the total variance (d + 1) |m|^2 for normal v and
(d - 1) |m|^2 for Rademacher v. Proposition 3.1 of the paper puts the difference at 2 / N^2 sum |delta_n|^2 in each of
the d coordinates; exactly it is 2 m_i^2 in coordinate i.
"""

from __future__ import annotations

import argparse

import numpy as np
from rich.console import Console
from rich.table import Table

from fedmrn_app.client_app import Party
from fedmrn_app.methods import Common
from fedmrn_app.methods.fedscalar import FedScalar
from fedmrn_app.noise import derive_seed
from fedmrn_app.uplink import DenseFormat, read_upload

BLOCK = 10_000  # draws at a time


def client_updates(overrides: tuple[str, ...]) -> np.ndarray:
    """Train every client for one round as FedAvg does; return the updates of all trained parameters, (clients, d)."""
    party = Party(overrides)
    config = party.config
    model, first = party.model()
    dense = model.state()[1]
    updates = []
    for client in range(config.clients):
        data, _ = party.train(client, 1, 0, first, dense)
        upload = read_upload(
            data,
            party.method,
            Common(model.shapes, first, first),
            DenseFormat(dense, model.dense_sizes, config.uplink.dense_bits),
            seed=0,
            samples=len(party.rows[client]),
        )
        updates.append(np.concatenate([upload.vector, upload.dense - dense]))
    return np.array(updates, np.float64)


def add_row(table: Table, name: str, measured: float, error: float, predicted: float) -> None:
    table.add_row(name, f"{measured:.4e}", f"{error:.1e}", f"{predicted:.4e}", f"{measured / predicted:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Variance of FedScalar's aggregated update, measured and predicted.")
    parser.add_argument("--draws", type=int, default=2_000_000)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    base = ("experiment=fedscalar_digits", *arguments.overrides, "strategy=fedavg", "local.lr=0.01")
    deltas = client_updates(base)
    n, d = deltas.shape
    mean = deltas.mean(0)
    energy = float(mean @ mean)
    measured, error = {}, {}
    table = Table("total variance of", "measured", "standard error", "predicted", "measured / predicted")
    for direction, factor in (("normal", d + 1), ("rademacher", d - 1)):
        method = FedScalar(noise=Party(base).config.noise, direction=direction)  # type: ignore[arg-type]
        total, squares = np.zeros(d), []
        for block in range(arguments.draws // BLOCK):
            v = method.vector(derive_seed(0, "noise", block), BLOCK * d).reshape(BLOCK, d).astype(np.float64)
            r = v @ mean
            total += r @ v
            squares.append(r**2 * (v**2).sum(1))
        square = np.concatenate(squares)
        measured[direction] = square.mean() - float(np.square(total / square.size).sum())
        error[direction] = square.std() / square.size**0.5
        add_row(table, direction, measured[direction], error[direction], factor * energy)
    difference, uncertain = measured["normal"] - measured["rademacher"], float(np.hypot(*error.values()))
    add_row(table, "normal - rademacher, exactly", difference, uncertain, 2 * energy)
    add_row(table, "normal - rademacher, Prop. 3.1", difference, uncertain, d * 2 / n**2 * float((deltas**2).sum()))
    console = Console(highlight=False, width=120)
    console.print(f"{n} clients, {d} parameters, {arguments.draws} draws, |m|^2 = {energy:.4e}")
    console.print(table)


if __name__ == "__main__":
    main()
