"""Measure what the speed of this project rests on. Every figure is a ratio of two things run in turns.

Usage: python scripts/benchmark.py PART [options] [--json FILE]

    step     a local step of every method against plain SGD's, and of FedMRN against the layer-wise way
    threads  a local step with one thread, two, ...
    epoch    one local epoch of FedMRN on CNN4 in float32 and bfloat16 against the layer-wise way
    codec    compressing and decoding an update, a million weights
    server   checking, decoding and adding many replies: time and memory
    round    simulated rounds against the local training of their clients; needs --data, Fashion-MNIST's folder

Tables show the median and, in brackets, the least and the most of the repetitions.
"""

from __future__ import annotations

import argparse
import copy
import csv
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional

from fedmrn_app.config import load_config, quote_override
from fedmrn_app.learning.batches import Batches, Images
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.memory import keep_freed_memory
from fedmrn_app.learning.models import MODELS, ImageShape, build_model
from fedmrn_app.learning.sgd import PRECISIONS, Precision, autocast
from fedmrn_app.methods import Common, LocalTask, Method, Noise, build_method, find_methods
from fedmrn_app.simulation import run_simulation
from fedmrn_app.wire.body import Coder
from scripts.layerwise import paper_cnn, set_progress, with_masked_layers

SEED = 5
LR = 0.03
SHAPES = {"cnn4": ImageShape(1, 28, 28, 10), "mlp": ImageShape(1, 28, 28, 10)}
PAPER_CNNS = {"cnn4": ((32,), (64,), (128,), (256,)), "cnn8": ((32, 32), (64, 64), (128, 128), (256, 256))}
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
    shape = shape_of(model)
    size = (shape.height, shape.width)
    plain = build_model(model, shape, 0)
    if model in PAPER_CNNS:
        plain = paper_cnn(shape.channels, size, shape.classes, PAPER_CNNS[model])
    module = with_masked_layers(plain, 1e-2, 0).to(device)
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
    first = copy.deepcopy(module.state_dict())

    def run() -> float:
        module.load_state_dict(first)
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


def bench_step(arguments: argparse.Namespace) -> Any:
    """One row a method, one column a model."""
    names = arguments.methods or list(find_methods())
    columns = {model: steps_on(model, arguments.threads, names, arguments) for model in arguments.models}
    show_steps(f"local step, {arguments.precision}, {arguments.threads} thread(s)", columns, arguments.steps)
    return to_json(columns)


def bench_threads(arguments: argparse.Namespace) -> Any:
    """One row a method, one column a model and number of threads; times in proportion to plain SGD on as many."""
    columns = {}
    for model in arguments.models:
        for threads in range(1, (os.cpu_count() or 1) + 1):
            columns[f"{model}, {threads} thread(s)"] = steps_on(model, threads, ["fedavg", "fedmrn"], arguments)
    show_steps(f"local step, {arguments.precision}", columns, arguments.steps)
    return to_json(columns)


def steps_on(model: str, threads: int, names: Sequence[str], arguments: argparse.Namespace) -> dict[str, Timing]:
    torch.set_num_threads(threads)
    options = (model, arguments.steps, arguments.precision, arguments.device)
    runs = {"plain SGD": plain_sgd(*options), "layer-wise masks": layerwise(*options)}
    runs |= {name: ours(name, *options) for name in names}
    return compare(runs, "plain SGD", arguments.repeats)


def show_steps(title: str, columns: dict[str, dict[str, Timing]], steps: int) -> None:
    table = Table(title, *columns)
    for row in next(iter(columns.values())):
        table.add_row(row, *[str(column[row]) for column in columns.values()])
    milliseconds = [1e3 * column["plain SGD"].seconds / steps for column in columns.values()]
    table.add_row("[dim]plain SGD's step, ms[/dim]", *[f"{value:.1f}" for value in milliseconds])
    Console().print(table)


def to_json(columns: dict[str, dict[str, Timing]]) -> Any:
    return {key: {name: timing.to_json() for name, timing in column.items()} for key, column in columns.items()}


def bench_epoch(arguments: argparse.Namespace) -> Any:
    """600 images of 28x28, batch 64: the layer-wise way's time over ours."""
    torch.set_num_threads(arguments.threads)
    steps = 10
    runs = {
        "layer-wise": layerwise("cnn4", steps, "float32", arguments.device),
        "float32": ours("fedmrn", "cnn4", steps, "float32", arguments.device),
        "bfloat16": ours("fedmrn", "cnn4", steps, "bfloat16", arguments.device),
    }
    found = compare(runs, "layer-wise", arguments.repeats)
    table = Table(f"FedMRN's epoch on CNN4, {arguments.threads} thread(s)", "times faster than layer-wise masks")
    speedups = {name: Timing([1 / ratio for ratio in timing.ratios], timing.seconds) for name, timing in found.items()}
    for name in ("float32", "bfloat16"):
        table.add_row(name, str(speedups[name]))
    Console().print(table)
    return to_json({"epoch": speedups})


def bench_codec(arguments: argparse.Namespace) -> Any:
    """Real updates of CNN4 after a few local steps; milliseconds a million weights, and in proportion to one copy."""
    torch.set_num_threads(1)
    table = Table("method", "coder", "compress, ms", "/ a copy", "decode and add, ms", "/ a copy", "bits a weight")
    found: dict[str, dict[str, Timing]] = {}
    for name in arguments.methods or find_methods():
        for coder in get_args(Coder):
            runs, bits, count = codec_runs(dataclasses.replace(method_of(name), coder=coder))
            timings = found[f"{name}, {coder}"] = compare(runs, "copy", arguments.repeats)
            cells = []
            for run in ("compress", "decode"):
                cells += [f"{1e9 * timings[run].seconds / count:.2f}", f"{timings[run].median:.0f}"]
            table.add_row(name, coder, *cells, f"{bits:.3f}")
    Console().print(table)
    return to_json(found)


def codec_runs(method: Method) -> tuple[dict[str, Run], float, int]:
    """What is timed of a method, the body's bits a weight, and the number of weights."""
    flat = FlatModel(build_model("cnn4", shape_of("cnn4"), 0), whole=method.whole_model)
    vector, dense = method.first_vector(flat), flat.state()[1]
    task = task_of(method, flat, batches_of("cnn4", 3, "cpu"))
    flat.load(vector, dense)
    body = method.train(flat, task).body
    total = np.zeros_like(vector)

    def copy_once() -> float:
        start = time.perf_counter()
        for _ in range(100):
            np.copyto(total, vector)
        return (time.perf_counter() - start) / 100

    def compress() -> float:
        flat.load(vector, dense)
        return method.train(flat, task).compress_seconds

    def decode() -> float:
        start = time.perf_counter()
        method.add(body, task.seed, known(task.common), np.float32(60), total)
        return time.perf_counter() - start

    return {"copy": copy_once, "compress": compress, "decode": decode}, 8 * len(body) / vector.size, vector.size


def known(common: Common) -> Common:
    """The same without what it has worked out before, as it is for each reply of another round."""
    return Common(common.shapes, common.vector, common.first, common.held)


def bench_server(arguments: argparse.Namespace) -> Any:
    """One row a number of replies and weights: seconds, nanoseconds a weight and reply, memory beyond the payloads."""
    table = Table(
        "weights", "replies", "coder", "seconds", "ns a weight", "copying one, times", "memory, MiB", "payloads, MiB",
        "memory beyond them, float32 copies",
    )  # fmt: skip
    found = []
    for coder in ("packed", "auto"):
        for weights in (1_000_000, 11_000_000):
            for replies in (10, 100, 1000):
                if coder == "auto" and weights * replies > 100_000_000:
                    continue  # in proportion, and long
                command = [
                    sys.executable,
                    str(Path(__file__).with_name("benchmark_server.py")),
                    str(weights),
                    str(replies),
                    coder,
                ]
                row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
                found.append(row)
                copies = (row["memory"] - row["payloads"]) / (4 * weights / 2**20)
                table.add_row(
                    f"{weights:,}", f"{replies:,}", coder, f"{row['seconds']:.2f}",
                    f"{1e9 * row['seconds'] / weights / replies:.2f}", f"{row['copies']:.1f}",
                    f"{row['memory']:.0f}", f"{row['payloads']:.0f}", f"{copies:.2f}",
                )  # fmt: skip
    Console().print(table)
    return found


def bench_round(arguments: argparse.Namespace) -> Any:
    """Run FedMRN as `experiment=fmnist_iid` does; a round's seconds over its clients' training on the same cores."""
    if arguments.data is None:
        raise SystemExit("round: needs --data, the folder with Fashion-MNIST's parquet files")
    overrides = ("experiment=fmnist_iid", f"rounds={arguments.rounds}", quote_override("dataset.path", arguments.data))
    config = load_config(overrides)
    with tempfile.TemporaryDirectory() as folder:
        run_simulation(config, overrides, Path(folder), on_line=print)
        with (Path(folder) / "rounds.csv").open() as file:
            rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    at_once = min(os.cpu_count() or 1, config.clients_per_round)
    table = Table("round", "seconds", "clients' training, seconds", "times")
    ratios = []
    for row in rows:
        training = row["train_seconds"] * config.clients_per_round / at_once
        ratios.append(row["seconds"] / training)
        table.add_row(f"{row['round']:.0f}", f"{row['seconds']:.2f}", f"{training:.2f}", f"{ratios[-1]:.3f}")
    table.add_row("median", "", "", f"{statistics.median(ratios):.3f}")
    Console().print(table)
    return {"median": statistics.median(ratios), "ratios": ratios}


PARTS = {
    "step": bench_step,
    "threads": bench_threads,
    "epoch": bench_epoch,
    "codec": bench_codec,
    "server": bench_server,
    "round": bench_round,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Ratios of times, each of two things run in turns.")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--models", nargs="+", default=["cnn4", "cnn8", "mlp"], choices=sorted(MODELS))
    parser.add_argument("--methods", nargs="+", help="all by default")
    parser.add_argument("--precision", default="float32", choices=PRECISIONS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20, help="local steps that are timed at a time")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--data")
    parser.add_argument("--json", type=Path, help="a file that the figures are written to")
    arguments = parser.parse_args()
    keep_freed_memory()
    found = PARTS[arguments.part](arguments)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({arguments.part: found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
