"""Measure what sub-models of channels cost a client: time of a local step, peak memory, bytes in both directions.

Usage: python scripts/submodel_cost.py [--steps 10] [--repeats 7] [OVERRIDE ...]

The settings are those of `experiment=submodel_cifar10 strategy.granularity=channel`. Steps of the full model and of the
narrower ones are timed in turns in one process; memory is what a process of its own takes beyond the data and the
libraries, at most. The bytes are those of the held values, which message and payload hold besides their framing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedmrn_app.client_app import Party
from fedmrn_app.wire.payload import Expected, decode_payload
from scripts.memory import PeakMemory

SEED = 5
CAPACITIES = (1.0, 1 / 4, 1 / 16)
BASE = ("experiment=submodel_cifar10", "strategy.granularity=channel")


def open_party(capacity: float, steps: int, overrides: list[str]) -> Party:
    return Party((*BASE, *overrides, f"local.steps={steps}", f"strategy.capacities=[{capacity}]"))


def train(party: Party, capacity: float) -> tuple[float, int]:
    """Train client 0 in round 1; return the seconds of training and the body's bytes."""
    model, first = party.model(capacity)
    data, _ = party.train(0, 1, SEED, first, model.state()[1])
    samples, weights = len(party.rows[0]), model.weights.numel()
    payload = decode_payload(
        data, Expected(party.method.code, SEED, samples, weights, model.dense.numel(), party.config.uplink.dense_bits)
    )
    return payload.train_seconds, len(payload.body)


def peak_memory(capacity: float, steps: int, overrides: list[str]) -> float:
    """MB that a process takes to build the model and train it, beyond what it took before."""
    command = [sys.executable, str(Path(__file__)), "--steps", str(steps), "--memory-of", str(capacity), *overrides]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description="Time, memory and bytes of sub-models of channels on a client.")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory-of", type=float, help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    if arguments.memory_of is not None:
        party = open_party(arguments.memory_of, arguments.steps, arguments.overrides)
        party.images.select(party.rows[0])
        watch = PeakMemory()
        watch.start()
        train(party, arguments.memory_of)
        print(json.dumps(watch.stop()))
        return
    parties = {capacity: open_party(capacity, arguments.steps, arguments.overrides) for capacity in CAPACITIES}
    bytes_up = {capacity: train(party, capacity)[1] for capacity, party in parties.items()}  # and warms up
    ratios: dict[float, list[float]] = {capacity: [] for capacity in CAPACITIES}
    for _ in range(arguments.repeats):
        seconds = {capacity: train(party, capacity)[0] for capacity, party in parties.items()}
        for capacity in CAPACITIES:
            ratios[capacity].append(seconds[capacity] / seconds[1.0])
    table = Table("capacity", "weights held", "bytes a direction", "step time", "spread", "peak memory, MB", "of full")
    memory = {capacity: peak_memory(capacity, arguments.steps, arguments.overrides) for capacity in CAPACITIES}
    for capacity in CAPACITIES:
        times = sorted(ratios[capacity])
        table.add_row(
            f"{capacity:g}",
            f"{bytes_up[capacity] / bytes_up[1.0]:.4f}",
            f"{bytes_up[capacity]:,}",
            f"{statistics.median(times):.3f}",
            f"{times[0]:.3f} to {times[-1]:.3f}",
            f"{memory[capacity]:.0f}",
            f"{memory[capacity] / memory[1.0]:.3f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
