"""Benchmark of compressing and decoding real updates of CNN4 after a few local steps."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fedmrn_app.methods import find_methods
from fedmrn_app.wire.body import CODERS
from scripts.benchmarks.clients import Setting, TimedClient
from scripts.benchmarks.timing import Run, Timing, compare, to_json


def bench_codec(arguments: argparse.Namespace) -> Any:
    """Print a row per method and coder: milliseconds per million weights, and the copies that take as long."""
    table = Table("method", "coder", "compress, ms", "copies", "decode and add, ms", "copies", "bits per weight")
    found: dict[str, dict[str, Timing]] = {}
    for name in arguments.methods or find_methods():
        for coder in CODERS:
            client = TimedClient(Setting("cnn4", 3).config(name, coder))
            runs, bits = codec_runs(client)
            timings = found[f"{name}, {coder}"] = compare(runs, "copy", arguments.repeats)
            cells = []
            for run in ("compress", "decode"):
                cells += [f"{1e9 * timings[run].seconds / client.weights:.2f}", f"{timings[run].median:.0f}"]
            table.add_row(name, coder, *cells, f"{bits:.3f}")
    Console().print(table)
    return to_json(found)


def codec_runs(client: TimedClient) -> tuple[dict[str, Run], float]:
    """Return the calls of a method that are timed, and the body's bits per weight."""
    codec, opened = client.opened.protocol.method.codec, client.opened
    body = client.train().body
    vector = opened.state.vector
    total = np.zeros_like(vector)

    def copy_once() -> float:
        start = time.perf_counter()
        for _ in range(100):
            np.copyto(total, vector)
        return (time.perf_counter() - start) / 100

    def decode() -> float:
        known = replace(opened.context(0))  # which has worked nothing out before, as in another round
        start = time.perf_counter()
        codec.read(body, known, opened.seed(0)).add_to(total, np.float32(60))
        return time.perf_counter() - start

    runs = {"copy": copy_once, "compress": lambda: client.train().compress_seconds, "decode": decode}
    return runs, 8 * len(body) / client.weights
