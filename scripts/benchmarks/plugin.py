"""Benchmark of the plug-in in examples/quickstart: without it, with EDEN's mod, and with FedMRN's optimizer
with settings and without."""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.local_nodes import run_app

QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart"
CLIENTS = 10
# the best of what `--tune --images 1000` tries for CIFAR-10, on training images held out; EDEN's is plain's
BEST: Mapping[str, Mapping[str, float | str]] = {
    "plain": {"learning-rate": 0.05},
    "eden": {"learning-rate": 0.05},
    "fedmrn": {"learning-rate": 0.2, "alpha": 0.1},
    "auto": {"learning-rate": 0.05, "alpha": "auto"},  # FedMRN with nothing tuned: plain's rate, and scales by clients
}


def bench_plugin(arguments: argparse.Namespace) -> Any:
    """Print accuracy and bytes of the quickstart: one row per method, or with `--tune` per method and setting."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    data = arguments.data or ""
    common = {"data-path": data, "images-per-client": arguments.images, "hold-out": arguments.tune}
    common |= {"strategy": arguments.inner, "num-server-rounds": arguments.rounds, "local-epochs": 1 if data else 10}
    methods = arguments.methods or list(BEST)
    table = Table(
        "", "learning rate", "alpha", "after 3 rounds", f"after {arguments.rounds}", "bytes of a reply",
        "bits per parameter", "plain / this",
    )  # fmt: skip
    found = []
    for method in methods:
        for setting in candidates(method) if arguments.tune else [BEST[method]]:
            named = "fedmrn" if method == "auto" else method
            row = {"method": method, **setting, **run_quickstart({**common, "method": named, **setting})}
            found.append(row)
            print(json.dumps(row), flush=True)
    for row in found:
        table.add_row(
            row["method"], str(row["learning-rate"]), str(row.get("alpha", "")), f"{row['accuracy'][3]:.4f}",
            f"{row['accuracy'][-1]:.4f}", f"{row['bytes']:,.0f}", f"{row['bits']:.3f}",
            f"{found[0]['bytes'] / row['bytes']:.1f}",
        )  # fmt: skip
    Console(width=120).print(table)
    return found


def candidates(method: str) -> list[dict[str, float | str]]:
    """Return the settings to choose from."""
    if method != "fedmrn":
        return [{**BEST[method], "learning-rate": rate} for rate in (0.05, 0.1)]
    pairs = ((0.05, 0.02), (0.1, 0.03), (0.1, 0.05), (0.2, 0.05), (0.2, 0.1), (0.2, 0.12), (0.2, 0.15))
    return [{"learning-rate": rate, "alpha": alpha} for rate, alpha in pairs]


def run_quickstart(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return accuracies from round 0 on, and the mean bytes of a whole reply and bits per parameter."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        grid = run_app(QUICKSTART, {**config, "results": str(file)}, CLIENTS)
        results = json.loads(file.read_text())
    size = mean(grid.reply_bytes)
    return {"accuracy": results["accuracy"], "bytes": size, "bits": 8 * size / results["parameters"]}
