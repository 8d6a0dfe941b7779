"""Measure what sub-models of channels cost a client: time of a local step, peak memory, bytes in both directions.

Usage: python scripts/benchmarks/submodel_cost.py [--steps 10] [--repeats 7] [OVERRIDE ...]

The settings are those of `experiment=submodel_cifar10`. Steps of the full model and of the narrower ones are timed
alternately in one process; memory is what a process of its own takes beyond the data and the libraries, at most. The
bytes are those of the held values, which message and payload hold besides their framing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.federation.protocol import Order
from fedmrn_app.federation.upload import header_of
from fedmrn_app.wire.payload import Payload, decode_payload
from scripts.benchmarks.memory import PeakMemory
from scripts.benchmarks.timing import compare

SEED = 5
CAPACITIES = (1.0, 1 / 4, 1 / 16)
BASE = ("experiment=submodel_cifar10",)


class NarrowClient:
    """Client 0 of a run in which all clients have one capacity, in the first round."""

    def __init__(self, capacity: float, steps: int, overrides: list[str]) -> None:
        settings = (f"local.steps={steps}", f"strategy.capacities=[{capacity}]")
        self.capacity = capacity
        self.worker = build_worker(load_config((*BASE, *overrides, *settings)))

    def train(self) -> Payload:
        """Train the narrow model from its first weights."""
        model, protocol = self.worker.model(self.capacity)
        order = Order(0, 1, SEED, protocol.initial, model.state()[1])
        reply = self.worker.train(order)
        header = header_of(protocol, SEED, self.worker.sample_count(0), protocol.layout.count)
        return decode_payload(reply.payload, header)

    def seconds(self) -> float:
        return self.train().train_seconds


def own_peak(capacity: float, steps: int, overrides: list[str]) -> float:
    """Return the MiB that building and training the model takes, beyond what the process took before."""
    client = NarrowClient(capacity, steps, overrides)
    client.worker.samples_of(0)
    watch = PeakMemory()
    watch.start()
    client.train()
    return watch.stop()


def peak_memory(capacity: float, steps: int, overrides: list[str]) -> float:
    """Return the same, measured in its own process."""
    command = [sys.executable, str(Path(__file__)), "--steps", str(steps), "--memory-of", str(capacity), *overrides]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description="Time, memory and bytes of sub-models of channels on a client.")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory-of", type=float, help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    steps, overrides = arguments.steps, arguments.overrides
    if arguments.memory_of is not None:
        print(json.dumps(own_peak(arguments.memory_of, steps, overrides)))
        return
    clients = {f"{capacity:g}": NarrowClient(capacity, steps, overrides) for capacity in CAPACITIES}
    size = {name: len(client.train().body) for name, client in clients.items()}
    timings = compare({name: client.seconds for name, client in clients.items()}, "1", arguments.repeats)
    memory = {name: peak_memory(client.capacity, steps, overrides) for name, client in clients.items()}
    table = Table(
        "capacity", "weights held", "bytes per direction", "step time", "spread", "peak memory, MiB", "of full"
    )
    for name, timing in timings.items():
        table.add_row(
            name,
            f"{size[name] / size['1']:.4f}",
            f"{size[name]:,}",
            f"{timing.median:.3f}",
            f"{min(timing.ratios):.3f} to {max(timing.ratios):.3f}",
            f"{memory[name]:.0f}",
            f"{memory[name] / memory['1']:.3f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
