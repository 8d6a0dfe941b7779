"""Benchmark of a step of the plug-in's optimizers against the same step without masks.

CNN4 is in channels-last layout, with batches of 64; the quickstart's network is in PyTorch's own, with batches of 32.
"""

from __future__ import annotations

import argparse
import copy
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
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
from fedmrn_app.plugin.client_round import RoundContent, round_of
from scripts.benchmarks.timing import Run, Timing, compare, to_json
from tests.local_nodes import LocalGrid

Make = Callable[[nn.Module], torch.optim.Optimizer]
PAIRS = (("SGD", "MaskedSGD"), ("SGD", "learn_masks(SGD)"), ("AdamW", "learn_masks(AdamW)"))


def quickstart() -> nn.Module:
    """Return the network of examples/quickstart for color images."""
    convolutions = [nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    linear = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*convolutions, nn.Flatten(), *linear)


def bench_optimizers(arguments: argparse.Namespace) -> Any:
    """Print processor seconds of all threads, because other processes may be busy."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(arguments.threads)
    cnn = cnn4(1, (28, 28), 10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    networks = {"CNN4": (cnn, (64, 1, 28, 28)), "quickstart": (quickstart(), (32, 3, 32, 32))}
    found = {name: _compare(arguments, module, shape) for name, (module, shape) in networks.items()}
    for network, timings in found.items():
        table = Table(f"{network}, {arguments.threads} thread(s)", "step / the step without masks", "ms")
        for name, timing in timings.items():
            table.add_row(name, str(timing), f"{1e3 * timing.seconds / arguments.steps:.2f}")
        Console().print(table)
    return to_json({"optimizers": found["CNN4"], "quickstart": found["quickstart"]})


def _compare(arguments: argparse.Namespace, module: nn.Module, shape: Sequence[int]) -> dict[str, Timing]:
    found, app = {}, ClientApp(mods=[compress_uplink])
    steps = arguments.steps * (arguments.repeats + 1)  # with those of the warm-up

    @app.train()
    def _(message: Message, context: Context) -> Message:
        def masked(kind: str) -> Make:  # each optimizer learns the masks of a message of its own
            plain = makers[kind]
            return lambda net: learn_masks(plain(net), net, _again(message), steps=steps)

        makers: dict[str, Make] = {
            "SGD": lambda net: torch.optim.SGD(net.parameters(), 0.03),
            "AdamW": lambda net: torch.optim.AdamW(net.parameters(), 1e-3),
            "MaskedSGD": lambda net: MaskedSGD(net, _again(message), 0.03, steps=steps),
        }
        makers |= {f"learn_masks({kind})": masked(kind) for kind in ("SGD", "AdamW")}
        for base, name in PAIRS:
            runs = {key: loop(module, makers[key], arguments.steps, shape) for key in (base, name)}
            found[name] = compare(runs, base, arguments.repeats)[name]
        MaskedSGD(module, message, 0.0, steps=1, may_skip=True)  # the server waits for masks
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    strategy = Compressed(FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1), "fedmrn")
    strategy.start(cast(Grid, LocalGrid(app, 1, {})), ArrayRecord(module.state_dict()), num_rounds=1)
    return found


def _again(message: Message) -> Message:
    """Return the message as if no optimizer had learned its masks."""
    again = copy.copy(message)
    again.__dict__ = dict(message.__dict__)
    again.content = RoundContent(message.content, replace(round_of(message), learned=None))
    return again


def loop(module: nn.Module, make: Make, steps: int, shape: Sequence[int]) -> Run:
    """Train for `steps` more steps at each call."""
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(*shape, generator=random), torch.randint(10, shape[:1], generator=random)
    net = copy.deepcopy(module).train()
    optimizer = make(net)

    def run() -> float:
        start = time.process_time()
        for _ in range(steps):
            optimizer.zero_grad()
            torch.autograd.backward(functional.cross_entropy(net(x), y))
            optimizer.step()
        return time.process_time() - start

    return run
