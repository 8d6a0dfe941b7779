"""Benchmark of simulated rounds of `experiment=fmnist_iid` against the local training of their clients."""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedmrn_app.config.build import resolve_from_data
from fedmrn_app.config.compose import compose_values, quote_override
from fedmrn_app.flower.local_run import run_local


def bench_round(arguments: argparse.Namespace) -> Any:
    """Print one row per round: its seconds over its clients' training on the same cores."""
    if arguments.data is None:
        raise SystemExit("round: needs --data, the folder with Fashion-MNIST's parquet files")
    path = quote_override("dataset.path", str(Path(arguments.data).expanduser().resolve()))
    values, config, _ = resolve_from_data(compose_values(("experiment=fmnist_iid", f"rounds={arguments.rounds}", path)))
    with tempfile.TemporaryDirectory() as folder:
        run_local(values, config, Path(folder), on_line=print)
        with (Path(folder) / "rounds.csv").open() as file:
            rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    at_once = min(os.cpu_count() or 1, config.clients_per_round)
    table = Table("round", "seconds", "clients' training, seconds", "times")
    ratios = []
    for row in rows:
        training = row["train_seconds"] * config.clients_per_round / at_once
        ratios.append(row["seconds"] / training)
        table.add_row(f"{row['round']:.0f}", f"{row['seconds']:.2f}", f"{training:.2f}", f"{ratios[-1]:.3f}")
    table.add_row("median", "", "", f"{statistics.median(ratios):.3f}")
    Console().print(table)
    return {"median": statistics.median(ratios), "ratios": ratios}
