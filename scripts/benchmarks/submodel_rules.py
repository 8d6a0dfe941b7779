"""Compare the rules by which clients hold parts of a model: a table of test accuracies on the digits.

Usage: python -m scripts.benchmarks.submodel_rules [--rounds 12] [--seeds 0 1 2] [--rules RULE ...] [-- OVERRIDE ...]
A line per cell of the table is printed as it is found.

Sub-models of channels of the digits' CNN with static batch norm, ten clients that all take part, one local epoch per
round. The rules are the three kinds of rolling windows, random channels that are the same for layers of one width or
each layer's own, and static ones; the mean fills in what a client does not hold, or is over those who hold it; the
capacities are five or all 1/4. Printed are mean and standard deviation over the seeds, and the share of the weights
that anybody has held by the end, with the first seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.federation.loop import run_rounds
from fedmrn_app.learning.evaluate import evaluate

BASE = (
    "strategy=submodel", "strategy.granularity=channel", "model=digits", "model.norm=static", "local.epochs=1",
    "local.lr=0.1",
)  # fmt: skip
RULES = {
    "rolling, disjoint": ("strategy.windows=disjoint",),
    "rolling, shuffled": ("strategy.windows=shuffled",),
    "rolling, fedrolex": ("strategy.windows=fedrolex",),
    "random, aligned": ("strategy.masking=random",),
    "random, independent": ("strategy.masking=random", "strategy.draws=independent"),
    "static": ("strategy.masking=static",),
}
CAPACITIES = {"five capacities": "[1.0,0.5,0.25,0.125,0.0625]", "all 1/4": "[0.25]"}
AGGREGATES = ("fill", "coverage")


def accuracy_and_held(overrides: Sequence[str]) -> tuple[float, float]:
    """Return a run's test accuracy, and the share of the weights that a client has held in some round."""
    worker = build_worker(load_config((*BASE, *overrides)))
    model, protocol = worker.model()
    seen = np.zeros(protocol.layout.count, np.bool_)
    method, seed = worker.method, worker.settings.seed
    for number in range(1, worker.settings.rounds + 1):
        for client in range(worker.settings.clients):
            client_seed = method.client_seed(seed, number, client)
            held = method.selection.submodel_mask(protocol.layout, client, number, client_seed)
            seen |= True if held is None else held
    state = run_rounds(worker)
    model.load(state.vector, state.dense)
    return evaluate(model, worker.task, worker.task.load("test")).headline, float(seen.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy of sub-models by the rule that chooses them.")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES), metavar="RULE")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(highlight=False, width=120)
    columns = [(capacity, aggregate) for capacity in CAPACITIES for aggregate in AGGREGATES]
    table = Table("rule", *(f"{capacity}, {aggregate}" for capacity, aggregate in columns), "held, five", "held, 1/4")
    for name in track(arguments.rules, console=console, transient=True):
        cells, held = [], {}
        for capacity, aggregate in columns:
            options = (f"rounds={arguments.rounds}", f"strategy.capacities={CAPACITIES[capacity]}", *RULES[name])
            runs = [
                accuracy_and_held((*options, f"strategy.aggregate={aggregate}", f"seed={s}", *arguments.overrides))
                for s in arguments.seeds
            ]
            accuracies = np.array([accuracy for accuracy, _ in runs])
            cells.append(f"{accuracies.mean():.3f} ± {accuracies.std(ddof=len(runs) > 1):.3f}")
            held[capacity] = f"{runs[0][1]:.3f}"
            console.print(f"{name}, {capacity}, {aggregate}: {cells[-1]}, held {held[capacity]}")
        table.add_row(name, *cells, *held.values())
    console.print(table)


if __name__ == "__main__":
    main()
