"""Benchmark of a step of the plug-in's optimizers against the same step without masks, on CNN4 with batches of 64."""

from __future__ import annotations

import argparse
import copy
import logging
import time
from collections.abc import Callable
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional

from fedmrn_app.learning.models.cnn import cnn4
from fedmrn_app.plugin import Compressed, MaskedSGD, compress_uplink, learn_masks
from scripts.benchmarks.local_grid import LocalGrid
from scripts.benchmarks.timing import Run, Timing, compare, to_json

Make = Callable[[nn.Module], torch.optim.Optimizer]
PAIRS = (("SGD", "MaskedSGD"), ("SGD", "learn_masks(SGD)"), ("AdamW", "learn_masks(AdamW)"))


def bench_optimizers(arguments: argparse.Namespace) -> Any:
    """Print processor seconds of all threads, because other processes may be busy."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(arguments.threads)
    steps, module = arguments.steps, cnn4(1, (28, 28), 10)
    found: dict[str, Timing] = {}
    app = ClientApp(mods=[compress_uplink])

    @app.train()
    def _(message: Message, context: Context) -> Message:
        makers: dict[str, Make] = {
            "SGD": lambda net: torch.optim.SGD(net.parameters(), 0.03),
            "AdamW": lambda net: torch.optim.AdamW(net.parameters(), 1e-3),
            "MaskedSGD": lambda net: MaskedSGD(net, message, 0.03, steps=steps),
            "learn_masks(SGD)": lambda net: learn_masks(makers["SGD"](net), net, message, steps=steps),
            "learn_masks(AdamW)": lambda net: learn_masks(makers["AdamW"](net), net, message, steps=steps),
        }
        runs = {name: loop(module, make, steps) for name, make in makers.items()}
        for base, name in PAIRS:
            found[name] = compare({base: runs[base], name: runs[name]}, base, arguments.repeats)[name]
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    strategy = Compressed(FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1), "fedmrn")
    strategy.start(cast(Grid, LocalGrid(app, 1, {})), ArrayRecord(module.state_dict()), num_rounds=1)
    table = Table(f"CNN4, {arguments.threads} thread(s)", "step / the step without masks", "ms")
    for name, timing in found.items():
        table.add_row(name, str(timing), f"{1e3 * timing.seconds / steps:.1f}")
    Console().print(table)
    return to_json({"optimizers": found})


def loop(module: nn.Module, make: Make, steps: int) -> Run:
    """Train for `steps` steps; building the optimizer does not count."""
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 1, 28, 28, generator=random), torch.randint(10, (64,), generator=random)

    def run() -> float:
        net = copy.deepcopy(module).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = make(net.train())
        start = time.process_time()
        for _ in range(steps):
            optimizer.zero_grad()
            torch.autograd.backward(functional.cross_entropy(net(x), y))
            optimizer.step()
        return time.process_time() - start

    return run
