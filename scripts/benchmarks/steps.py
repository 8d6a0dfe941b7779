"""Benchmark of local steps: of each method, of plain SGD, and of masks that are trained layer by layer."""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from fedmrn_app.config.build import build_module, build_task
from fedmrn_app.learning.batches import Batches
from fedmrn_app.learning.sgd import autocast
from fedmrn_app.methods import find_methods
from scripts.benchmarks.clients import LR, Setting, TimedClient
from scripts.benchmarks.timing import Run, Timing, compare, to_json
from tests.plain.layerwise import paper_cnn, set_progress, with_masked_layers

PAPER_CNNS = {"cnn4": ((32,), (64,), (128,), (256,)), "cnn8": ((32, 32), (64, 64), (128, 128), (256, 256))}
EPOCH_STEPS = 10  # of 64 images: 600 and some, a client's of Fashion-MNIST over 100 clients


def bench_step(arguments: argparse.Namespace) -> Any:
    """Print one row per method and one column per model."""
    names = arguments.methods or list(find_methods())
    columns = {model: steps_on(setting_of(arguments, model), names, arguments.repeats) for model in arguments.models}
    show_steps(f"local step, {arguments.precision}, {arguments.threads} thread(s)", columns, arguments.steps)
    return to_json(columns)


def bench_threads(arguments: argparse.Namespace) -> Any:
    """Print one row per method, one column per model and thread count; times are relative to plain SGD."""
    columns = {}
    for model in arguments.models:
        for threads in range(1, (os.cpu_count() or 1) + 1):
            setting = replace(setting_of(arguments, model), threads=threads)
            columns[f"{model}, {threads} thread(s)"] = steps_on(setting, ["fedavg", "fedmrn"], arguments.repeats)
    show_steps(f"local step, {arguments.precision}", columns, arguments.steps)
    return to_json(columns)


def bench_epoch(arguments: argparse.Namespace) -> Any:
    """Print the layer-wise training's time over ours, for 640 images of 28x28 in batches of 64."""
    setting = Setting("cnn4", EPOCH_STEPS, "float32", arguments.device, arguments.threads)
    runs = {
        "layer-wise": layerwise(setting),
        "float32": ours("fedmrn", setting),
        "bfloat16": ours("fedmrn", replace(setting, precision="bfloat16")),
    }
    found = compare(runs, "layer-wise", arguments.repeats)
    table = Table(f"FedMRN's epoch on CNN4, {arguments.threads} thread(s)", "times faster than layer-wise masks")
    speedups = {name: Timing([1 / ratio for ratio in timing.ratios], timing.seconds) for name, timing in found.items()}
    for name in ("float32", "bfloat16"):
        table.add_row(name, str(speedups[name]))
    Console().print(table)
    return to_json({"epoch": speedups})


def setting_of(arguments: argparse.Namespace, model: str) -> Setting:
    return Setting(model, arguments.steps, arguments.precision, arguments.device, arguments.threads)


def steps_on(setting: Setting, names: Sequence[str], repeats: int) -> dict[str, Timing]:
    runs = {"plain SGD": plain_sgd(setting), "layer-wise masks": layerwise(setting)}
    runs |= {name: ours(name, setting) for name in names}
    return compare(runs, "plain SGD", repeats)


def ours(name: str, setting: Setting) -> Run:
    """Return local training by one of our methods, as a client does it, without compression."""
    client = TimedClient(setting.config(name))
    return lambda: client.train().train_seconds


def plain_sgd(setting: Setting) -> Run:
    """Return PyTorch's own loop: a module in channels-last layout and torch.optim.SGD."""
    config = setting.config()
    module = build_module(config, build_task(config)).to(setting.device)
    module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return sgd_loop(module, lambda step: None, setting, torch.channels_last)


def layerwise(setting: Setting) -> Run:
    """Return the layer-wise training of masks, in the default layout."""
    config = setting.config()
    task = build_task(config)
    plain = build_module(config, task)
    if setting.model in PAPER_CNNS:
        known = task.inputs()
        plain = paper_cnn(known["channels"], known["size"], known["classes"], PAPER_CNNS[setting.model])
    module = with_masked_layers(plain, 1e-2, 0).to(setting.device)
    return sgd_loop(module, lambda step: set_progress(module, step / setting.steps), setting, torch.contiguous_format)


def sgd_loop(
    module: nn.Module, before_step: Callable[[int], None], setting: Setting, memory_format: torch.memory_format
) -> Run:
    optimiser = torch.optim.SGD(module.parameters(), LR)
    task = build_task(setting.config())
    samples = task.load("train")
    batches = Batches(task, samples, batch_size=64, epochs=1, steps=setting.steps, seed=1, device=setting.device)
    first = copy.deepcopy(module.state_dict())

    def run() -> float:
        torch.set_num_threads(setting.threads)
        module.load_state_dict(first)
        module.train()
        total = torch.zeros((), device=setting.device)
        start = time.perf_counter()
        for step, (x, y) in enumerate(batches, 1):
            before_step(step)
            optimiser.zero_grad()
            with autocast(torch.device(setting.device), setting.precision):
                loss = task.loss(module(x.contiguous(memory_format=memory_format)), y)
            torch.autograd.backward(loss)
            optimiser.step()
            total += loss.detach()
        float(total)
        return time.perf_counter() - start

    return run


def show_steps(title: str, columns: dict[str, dict[str, Timing]], steps: int) -> None:
    table = Table(title, *columns)
    for row in next(iter(columns.values())):
        table.add_row(row, *[str(column[row]) for column in columns.values()])
    milliseconds = [1e3 * column["plain SGD"].seconds / steps for column in columns.values()]
    table.add_row("[dim]plain SGD's step, ms[/dim]", *[f"{value:.1f}" for value in milliseconds])
    Console().print(table)
