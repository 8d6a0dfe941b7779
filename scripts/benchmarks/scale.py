"""Benchmark of simulated rounds of many clients: their cost beyond training, compared with Flower's FedAvg."""

from __future__ import annotations

import argparse
import csv
import json
import os
import tempfile
import time
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from fedmrn_app.config.build import resolve_from_data
from fedmrn_app.config.compose import compose_values, quote_override
from fedmrn_app.flower.local_grid import LocalGrid
from fedmrn_app.flower.local_run import run_local, worker_count
from scripts.benchmarks.usage import Usage

PEER = "scripts.benchmarks.peer_app.peer"


def bench_scale(arguments: argparse.Namespace) -> Any:
    """Print a table of runs with different numbers of clients; with `--peer` Flower's own simulation alternates."""
    rows = []
    for clients in arguments.clients:
        overrides = _overrides(clients, arguments)
        for _ in range(arguments.repeats if arguments.peer else 1):
            rows.append({"clients": clients, "who": "fedmrn", **ours(overrides)})
            print(json.dumps(rows[-1]), flush=True)
            if arguments.peer:
                rows.append({"clients": clients, "who": "Flower's FedAvg", **peer(overrides)})
                print(json.dumps(rows[-1]), flush=True)
    table = Table(
        "clients", "who", "start, s", "round, s", "beyond training, ms per client", "worked, ms per client",
        "largest memory, MiB", "messages",
    )  # fmt: skip
    for row in rows:
        beyond = "" if row["beyond"] is None else f"{1e3 * row['beyond']:.2f}"
        worked, memory = (
            ", ".join(f"{kind} {value:,.1f}" for kind, value in row[key].items()) for key in ("worked", "memory")
        )
        start, each = (f"{row[key]:.1f}" for key in ("start", "round"))
        table.add_row(f"{row['clients']:,}", row["who"], start, each, beyond, worked, memory, f"{row['messages']:,}")
    Console(width=200).print(table)
    return rows


def _overrides(clients: int, arguments: argparse.Namespace) -> tuple[str, ...]:
    data = ("dataset=fashion_mnist", quote_override("dataset.path", str(Path(arguments.data).expanduser().resolve())))
    return (
        *(data if arguments.data else ()), "model=mlp", "model.hidden=[32]", f"clients={clients}",
        f"clients_per_round={min(clients, arguments.per_round)}", "partition.samples_per_client=20",
        "local.epochs=1", "local.batch_size=20", f"rounds={arguments.rounds}",
    )  # fmt: skip


def ours(overrides: tuple[str, ...]) -> dict[str, Any]:
    """Return the cost of a run; the means leave out the first round, which starts and compiles everything."""
    values, config, task = resolve_from_data(compose_values(overrides))
    task.load("train")
    usage, marks = Usage(), []

    def line(text: str) -> None:
        if text.startswith("round"):
            marks.append((time.time(), usage.worked()))

    begun = time.time()
    usage.start()
    with tempfile.TemporaryDirectory() as folder:
        run_local(values, config, Path(folder), on_line=line)
        with (Path(folder) / "rounds.csv").open() as file:
            rounds = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    usage.stop()
    at_once = min(os.cpu_count() or 1, config.clients_per_round)
    asked = config.clients_per_round
    beyond = [row["seconds"] / asked - row["train_seconds"] / at_once for row in rounds[1:]]
    before, after = marks[0][1], marks[-1][1]
    times = asked * (len(rounds) - 1)
    return {
        "start": marks[0][0] - begun - rounds[0]["seconds"],
        "round": median(row["seconds"] for row in rounds[1:]),
        "beyond": median(beyond),
        "train": median(row["train_seconds"] for row in rounds[1:]),
        "worked": {kind: 1e3 * (seconds - before.get(kind, 0)) / times for kind, seconds in after.items()},
        "memory": usage.peak,
        "messages": 2 * sum(int(row["clients_ok"] + row["clients_failed"]) for row in rounds),
    }


def peer(overrides: tuple[str, ...]) -> dict[str, Any]:
    """Return the same of Flower's own strategy on the same grid, with a node per client."""
    _, config, task = resolve_from_data(compose_values(overrides))
    task.load("train")
    usage, begun = Usage(), time.time()
    usage.start()
    processes = worker_count(config)
    with tempfile.TemporaryDirectory() as name:
        results = Path(name) / "results.json"
        run = {"overrides": json.dumps(overrides), "results": str(results)}
        grid = LocalGrid(f"{PEER}.client_app:app", config.clients, run_config=run, processes=processes)
        with grid:
            grid.run_app(import_module(f"{PEER}.server_app").app)
        worked = usage.worked()
        ended: list[float] = json.loads(results.read_text())
    usage.stop()
    times = config.clients_per_round * config.rounds
    return {
        "start": ended[0] - begun,
        "round": median(after - before for before, after in pairwise(ended[1:])),
        "beyond": None,
        "worked": {kind: 1e3 * seconds / times for kind, seconds in worked.items()},
        "memory": usage.peak,
        "messages": 2 * times,
    }
