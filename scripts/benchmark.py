"""Measure what the speed of this project rests on. Every figure is a ratio of two things run in turns.

Usage: python scripts/benchmark.py PART ... [--json FILE] [options of the part]

    step     a local step of every method against plain SGD, and of FedMRN against the layer-wise way
    threads  the same with one thread, two, ... for plain SGD and FedMRN
    codec    compressing and decoding an update, a million weights
    server   decoding and adding many replies: time and memory
    round    a simulated round against the local training of its clients

Tables show the median and, in brackets, the least and the most of the repetitions.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional

from fedmrn_app.learning.batches import Batches, Images
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.models import ImageShape, build_model
from fedmrn_app.learning.sgd import Precision, autocast
from fedmrn_app.methods import LocalTask, Method, Noise, build_method, find_methods
from scripts.layerwise import set_progress, with_masked_layers

SEED = 5
LR = 0.03
SHAPES = {"cnn4": ImageShape(1, 28, 28, 10), "mlp": ImageShape(1, 28, 28, 10)}
IN_COLOUR = ImageShape(3, 32, 32, 10)

Run = Callable[[], float]  # returns the seconds it took


@dataclass(frozen=True)
class Timing:
    """Repetitions of something relative to something else, run in turns."""

    ratios: list[float]
    seconds: float  # the median, of the thing itself

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    def __str__(self) -> str:
        return f"{self.median:.3f} [dim]({min(self.ratios):.3f}-{max(self.ratios):.3f})[/dim]"

    def to_json(self) -> dict[str, Any]:
        return {"median": self.median, "ratios": self.ratios, "seconds": self.seconds}


def compare(runs: dict[str, Run], base: str, repeats: int) -> dict[str, Timing]:
    """Run everything in turns, after once to warm up; return each run's time relative to the base's in that turn."""
    for run in runs.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats):
        names = list(runs)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds[name].append(runs[name]())
    return {
        name: Timing([a / b for a, b in zip(times, seconds[base], strict=True)], statistics.median(times))
        for name, times in seconds.items()
    }


def shape_of(model: str) -> ImageShape:
    return SHAPES.get(model, IN_COLOUR)


def images_of(model: str, count: int) -> Images:
    shape = shape_of(model)
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (count, shape.channels, shape.height, shape.width), dtype=np.uint8)
    half = (0.5,) * shape.channels
    return Images(pixels, random.integers(0, shape.classes, count), half, half)


def batches_of(model: str, steps: int, device: str) -> Batches:
    return Batches(images_of(model, 640), batch_size=64, epochs=1, steps=steps, seed=1, device=device)


def plain_sgd(model: str, steps: int, precision: Precision, device: str) -> Run:
    """PyTorch's own loop: a module in channels-last layout and torch.optim.SGD."""
    module = build_model(model, shape_of(model), 0).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return sgd_loop(module, lambda step: None, model, steps, precision, device)


def layerwise(model: str, steps: int, precision: Precision, device: str) -> Run:
    """The layer-wise way to train masks, in the default layout."""
    module = with_masked_layers(build_model(model, shape_of(model), 0), 1e-2, 0).to(device)
    return sgd_loop(
        module,
        lambda step: set_progress(module, step / steps),
        model,
        steps,
        precision,
        device,
        torch.contiguous_format,
    )


def sgd_loop(
    module: nn.Module,
    before_step: Callable[[int], None],
    model: str,
    steps: int,
    precision: Precision,
    device: str,
    memory_format: torch.memory_format = torch.channels_last,
) -> Run:
    optimiser = torch.optim.SGD(module.parameters(), LR)
    batches = batches_of(model, steps, device)

    def run() -> float:
        module.train()
        total = torch.zeros((), device=device)
        start = time.perf_counter()
        for step, (x, y) in enumerate(batches, 1):
            before_step(step)
            optimiser.zero_grad()
            with autocast(torch.device(device), precision):
                loss = functional.cross_entropy(module(x.contiguous(memory_format=memory_format)), y)
            torch.autograd.backward(loss)
            optimiser.step()
            total += loss.detach()
        float(total)
        return time.perf_counter() - start

    return run


def ours(name: str, model: str, steps: int, precision: Precision, device: str) -> Run:
    """Local training by one of our methods, as a client does it, compression aside."""
    method = method_of(name)
    flat = FlatModel(build_model(model, shape_of(model), 0), device, whole=method.whole_model)
    vector, dense = method.first_vector(flat), flat.state()[1]
    task = task_of(method, flat, batches_of(model, steps, device), precision)

    def run() -> float:
        flat.load(vector, dense)
        return method.train(flat, task).train_seconds

    return run


def method_of(name: str) -> Method:
    options: dict[str, object] = {"capacities": [0.25]} if name == "submodel" else {}
    return build_method(name, options, Noise())


def task_of(method: Method, flat: FlatModel, batches: Batches, precision: Precision = "float32") -> LocalTask:
    first = method.first_vector(flat)
    held = method.held(flat.shapes, 0, 1, SEED)
    common = method.receive(method.send(first, flat.shapes, held), flat.shapes, first, held)
    return LocalTask(batches, LR, precision, SEED, common, private_seed=3)


def bench_step(arguments: argparse.Namespace, threads: Sequence[int] = (), methods: Sequence[str] = ()) -> Any:
    """Time local steps; one row a method, one column a model and number of threads."""
    names = list(methods or arguments.methods or find_methods())
    settings = [(model, count) for model in arguments.models for count in (threads or [arguments.threads]) if model]
    table = Table(f"a local step / plain SGD's, {arguments.precision}", *[f"{m}, {t} thread(s)" for m, t in settings])
    found: dict[str, dict[str, Timing]] = {}
    for model, count in settings:
        torch.set_num_threads(count)
        steps = arguments.steps
        options = (model, steps, arguments.precision, arguments.device)
        runs = {"plain SGD": plain_sgd(*options), "layer-wise masks": layerwise(*options)}
        runs |= {name: ours(name, *options) for name in names}
        found[f"{model}, {count}"] = compare(runs, "plain SGD", arguments.repeats)
    for row in ["plain SGD", "layer-wise masks", *names]:
        table.add_row(row, *[str(column[row]) for column in found.values()])
    steps_ms = [f"{1e3 * column['plain SGD'].seconds / arguments.steps:.1f} ms" for column in found.values()]
    table.add_row("[dim]a plain step[/dim]", *steps_ms)
    Console().print(table)
    return {key: {name: timing.to_json() for name, timing in column.items()} for key, column in found.items()}
