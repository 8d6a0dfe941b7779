"""Measure the variance of FedScalar's aggregated update for both kinds of random vector, beside what theory predicts.

Usage: python scripts/theory/fedscalar_variance.py [--draws 2000000] [OVERRIDE ...]

The clients of `experiment=fedscalar_digits` train one round; their updates stay fixed while the vector is drawn again
and again. With m the mean update, the aggregated update <m, v> v has the total variance (d + 1) |m|^2 for normal v and
(d - 1) |m|^2 for Rademacher v. Proposition 3.1 of the paper puts the difference at 2 / N^2 sum |delta_n|^2 in each of
the d coordinates; exactly it is 2 m_i^2 in coordinate i.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.federation.server import open_round
from fedmrn_app.methods.fedscalar import Direction, Projection
from fedmrn_app.seeds import derive_seed
from tests.plain.upload import read_upload

BLOCK = 10_000  # draws at a time


def client_updates(overrides: Sequence[str]) -> np.ndarray:
    """Train every client for one round as FedAvg does; return the updates of all trained parameters, (clients, d)."""
    worker = build_worker(load_config((*overrides, "strategy=fedavg", "local.lr=0.01")))
    _, protocol = worker.model()
    state = protocol.begin()
    samples = {client: worker.sample_count(client) for client in range(worker.settings.clients)}
    opened = open_round(protocol, state, 1, samples, len(samples))
    updates = []
    for client in opened.clients:
        known = opened.context(client)
        data = worker.train(opened.order(client)).payload
        upload = read_upload(data, protocol, opened.header(client, known), known, state.dense)
        updates.append(np.concatenate([upload.vector, upload.dense - state.dense]))
    return np.array(updates, np.float64)


def total_variance(direction: Direction, mean: np.ndarray, draws: int) -> tuple[float, float]:
    """Return the total variance of <m, v> v over many v, and its standard error."""
    projection, d = Projection(direction), mean.size
    total, squares = np.zeros(d), []
    for block in range(draws // BLOCK):
        v = projection.vector(derive_seed(0, "noise", block), BLOCK * d).reshape(BLOCK, d).astype(np.float64)
        r = v @ mean
        total += r @ v
        squares.append(r**2 * (v**2).sum(1))
    square = np.concatenate(squares)
    return float(square.mean() - np.square(total / square.size).sum()), float(square.std() / square.size**0.5)


def add_row(table: Table, name: str, measured: float, error: float, predicted: float) -> None:
    table.add_row(name, f"{measured:.4e}", f"{error:.1e}", f"{predicted:.4e}", f"{measured / predicted:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Variance of FedScalar's aggregated update, measured and predicted.")
    parser.add_argument("--draws", type=int, default=2_000_000)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    deltas = client_updates(("experiment=fedscalar_digits", *arguments.overrides))
    n, d = deltas.shape
    mean = deltas.mean(0)
    energy = float(mean @ mean)
    table = Table("total variance of", "measured", "standard error", "predicted", "measured / predicted")
    normal, normal_error = total_variance("normal", mean, arguments.draws)
    add_row(table, "normal", normal, normal_error, (d + 1) * energy)
    rademacher, rademacher_error = total_variance("rademacher", mean, arguments.draws)
    add_row(table, "rademacher", rademacher, rademacher_error, (d - 1) * energy)
    difference, uncertain = normal - rademacher, float(np.hypot(normal_error, rademacher_error))
    add_row(table, "normal - rademacher, exactly", difference, uncertain, 2 * energy)
    add_row(table, "normal - rademacher, Prop. 3.1", difference, uncertain, d * 2 / n**2 * float((deltas**2).sum()))
    console = Console(highlight=False, width=120)
    console.print(f"{n} clients, {d} parameters, {arguments.draws} draws, |m|^2 = {energy:.4e}")
    console.print(table)


if __name__ == "__main__":
    main()
