"""Compiled loops against their plain forms, mask coding against copying, and compression against training.

Usage: python -m scripts.benchmarks.kernels [--repeats N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fedmrn_app.kernels import counter_rng, thresholds
from fedmrn_app.kernels.masked_step import masked_step
from fedmrn_app.kernels.masking import MaskKind, Vectors, plain_step
from fedmrn_app.layout import Layout
from fedmrn_app.methods import find_methods
from fedmrn_app.noise import generate_noise
from fedmrn_app.wire.mask_model import SideInformation
from fedmrn_app.wire.masks import code_mask, decode_mask
from scripts.benchmarks.clients import Setting, TimedClient
from scripts.benchmarks.timing import Run, compare

COUNT = 1_000_000
KEY = 0xDEADBEEF12345678


def main() -> None:
    parser = argparse.ArgumentParser(description="Ratios of times, each of two things run alternately.")
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    table = Table("per million weights", "ms", "relative to", "ratio")
    for name, (base, runs) in kernel_runs().items():
        timing = compare(runs, base, repeats)[name]
        table.add_row(name, f"{1e3 * timing.seconds:.2f}", base, str(timing))
    Console().print(table)
    table = Table("method", "compression, relative to ten local steps of CNN4")
    for name in find_methods():
        table.add_row(name, str(compare(client_runs(name), "train", min(repeats, 3))["compress"]))
    Console().print(table)


def kernel_runs() -> dict[str, tuple[str, dict[str, Run]]]:
    """For each row of the table the name of what it is compared with, and both runs."""
    u, n, w, grad = torch.randn(4, COUNT, generator=torch.Generator().manual_seed(0))
    steps = {name: make(MaskKind(False), Vectors(u.clone(), n.clone(), w.clone(), torch.empty(COUNT)))
             for name, make in (("masked step", masked_step), ("plain step", plain_step))}  # fmt: skip
    noise = generate_noise(1, COUNT, "uniform", 1.0)
    side = SideInformation(Layout(((1000, 1000),)), np.abs(noise), np.copysign(np.float32(1), noise))
    bits = np.random.default_rng(0).random(COUNT) < 0.5 - 0.4 * side.size
    coded, target = code_mask(bits, side), np.empty_like(noise)
    pairs: list[tuple[str, Callable[[], Any], str, Callable[[], Any]]] = [
        ("masked step", lambda: steps["masked step"](0, grad, 1e-3, 0.5, KEY),
         "plain step", lambda: steps["plain step"](0, grad, 1e-3, 0.5, KEY)),
        ("uniforms", lambda: thresholds.uniforms(KEY, COUNT),
         "plain uniforms", lambda: counter_rng.unit_floats(counter_rng.random_words(KEY, COUNT))),
        ("coding a mask", lambda: code_mask(bits, side), "copying", lambda: np.copyto(target, noise)),
        ("decoding a mask", lambda: decode_mask(coded, side), "copying", lambda: np.copyto(target, noise)),
    ]  # fmt: skip
    return {name: (base, {name: timed(work), base: timed(other)}) for name, work, base, other in pairs}


def client_runs(method: str) -> dict[str, Run]:
    client = TimedClient(Setting("cnn4", 10).config(method))
    return {"train": lambda: client.train().train_seconds, "compress": lambda: client.train().compress_seconds}


def timed(work: Callable[[], Any]) -> Run:
    def run() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return run


if __name__ == "__main__":
    main()
