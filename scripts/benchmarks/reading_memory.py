"""The memory that a server's round takes, in copies of the model beyond the global vector and the sum of the replies.

Usage: python -m scripts.benchmarks.reading_memory [--sizes 1e7 7e7] [--methods quantized eden ...] [--threads 1]

Two rows for each method: while the model is coded that is sent, and while three replies are read and added. The replies
are the same update, which is a sum of 32 products of vectors for each matrix, or noise with heavy tails alone.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Mapping

import numpy as np
from rich.console import Console
from rich.table import Table

from fedmrn_app.config.build import build_run_method
from fedmrn_app.config.compose import load_config
from fedmrn_app.federation.protocol import GlobalState, RunProtocol
from fedmrn_app.federation.server import OpenRound, close_round, open_round
from fedmrn_app.federation.upload import Update, header_of, write_upload
from fedmrn_app.layout import Float32Array, Layout
from scripts.benchmarks.large import SIZES, Shapes, update_of
from scripts.benchmarks.memory import PeakMemory, return_freed_memory

_DENSE = np.zeros(100, np.float32)
_SAMPLES, _REPLIES = 600, 3
METHODS = ("fedavg", "fedmrn", "quantized", "eden", "drive", "topk")
KINDS = ("factors", "noise")


def noise_of(shapes: Shapes) -> Float32Array:
    """Return an update without directions, float32 (d,)."""
    count = Layout(tuple(shapes)).count
    return (np.random.default_rng(0).standard_normal(count, np.float32) ** 3) * np.float32(1e-3)


def made_up_round(method: str, shapes: Shapes, kind: str) -> tuple[OpenRound, Mapping[int, bytes]]:
    """Return a round whose model is sent on a lattice, and its replies."""
    layout = Layout(tuple(shapes))
    x = update_of(shapes) if kind == "factors" else noise_of(shapes)
    first = np.random.default_rng(1).standard_normal(x.size, np.float32) * np.float32(0.02)
    config = load_config((f"strategy={method}", "downlink.dtype=grid"))
    protocol = RunProtocol(
        method=build_run_method(config), layout=layout, dense_sizes=(_DENSE.size,), initial=first, seed=1, dense_bits=32
    )
    opened = open_round(protocol, GlobalState(first + x, _DENSE), 1, dict.fromkeys(range(_REPLIES), _SAMPLES), _REPLIES)
    replies = {}
    for client in range(_REPLIES):
        if client == 0 or protocol.method.training.learns_masks:  # of noise that depends on the client
            body = protocol.method.codec.encode(x, opened.context(client), opened.seed(client), 5)
            opened.release()
        header = header_of(protocol, opened.seed(client), _SAMPLES, layout.count)
        replies[client] = write_upload(protocol, header, Update(body, _DENSE), _DENSE)
    return opened, replies


def measure(method: str, shapes: Shapes, kind: str, threads: int) -> tuple[float, float]:
    """Return the copies of the model that coding takes, and those that reading replies takes beside the sum."""
    opened, replies = made_up_round(method, shapes, kind)
    copy = 4 * opened.protocol.layout.count / 2**20
    memory = watched()
    order = opened.order(0)
    coding = memory.stop() / copy
    memory = watched(memory.before)  # what coding leaves, the lattice and its bytes, is there while replies are read
    _, report = close_round(opened, dict(replies), threads)
    reading = memory.stop() / copy - 1
    assert len(report.used) == _REPLIES, report.failures
    assert order.vector is not None
    return coding, reading


def watched(before: int | None = None) -> PeakMemory:
    """Start to measure, from the memory that there is or was before."""
    gc.collect()
    return_freed_memory()
    memory = PeakMemory()
    memory.before = memory.before if before is None else before
    memory.start()
    return memory


def main() -> None:
    parser = argparse.ArgumentParser(description="The memory that a server's round takes, in copies of the model.")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["1e7", "7e7"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--threads", type=int, default=1)
    words = parser.parse_args()
    table = Table("weights", "update", "method", "coding the model", "reading replies")
    for size in words.sizes:
        for kind in KINDS:
            for method in words.methods:
                measure(method, [(64, 64)], kind, words.threads)  # compiles, or reads what has been compiled
                coding, reading = measure(method, SIZES[size], kind, words.threads)
                table.add_row(size, kind, method, f"{coding:.2f}", f"{reading:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
