"""Accuracy and bytes of examples/quickstart, with and without secure sums of the plug-in.

python -m scripts.benchmarks.secure_plugin --rounds 3
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import tomllib
from collections.abc import Mapping
from typing import Any, cast

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from rich.console import Console
from rich.table import Table

from fedmrn_app.exchange.content_size import content_bytes
from fedmrn_app.plugin import Compressed
from scripts.benchmarks.plugin import CLIENTS, QUICKSTART
from tests.local_nodes import LocalGrid

KINDS: Mapping[str, Mapping[str, Any]] = {
    "plain Flower": {},
    "the same, secure sum": {"method": "fedavg", "secure": True},
    "the same, secure sum, 16 bits": {"method": "fedavg", "secure": True, "secure_bits": 16, "secure_bound": 1.0},
    "FedMRN": {"method": "fedmrn", "alpha": 0.05},
    "FedMRN, secure sum": {"method": "fedmrn", "alpha": 0.05, "secure": True},
}


def run(options: Mapping[str, Any], rounds: int) -> tuple[float, float, float]:
    """Return the accuracy, and the bytes up and down per client and round."""
    task, client = (importlib.import_module(f"quickstart.{name}") for name in ("task", "client_app"))
    settings = tomllib.loads((QUICKSTART / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config = {**settings, "method": options.get("method", "plain")}
    net, rows = task.new_net(config), task.evaluation_rows(config)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": task.evaluate(net, *rows)})

    strategy: Strategy = FedAvg(fraction_evaluate=0.0)
    if options:
        strategy = Compressed(strategy, **options)
    grid = LocalGrid(client.app, CLIENTS, config)
    first = ArrayRecord(net.state_dict())
    result = strategy.start(cast(Grid, grid), first, num_rounds=rounds, evaluate_fn=evaluate)
    count = rounds * CLIENTS
    down = sum(content_bytes(message.content) for message in grid.sent) / count
    return cast(float, result.evaluate_metrics_serverapp[rounds]["accuracy"]), sum(grid.reply_bytes) / count, down


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    logging.getLogger("flwr").setLevel(logging.ERROR)
    sys.path.insert(0, str(QUICKSTART))
    table = Table("", "accuracy", "bytes up", "bytes down")
    for name, options in KINDS.items():
        accuracy, up, down = run(options, rounds)
        table.add_row(name, f"{accuracy:.4f}", f"{up:,.0f}", f"{down:,.0f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
