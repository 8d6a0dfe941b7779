"""How codecs scale from a hundred thousand to 124 million weights: time and memory per weight.

Usage: python -m scripts.benchmarks.large [--sizes 1e5 1e6 1e7 7e7 vit gpt2] [--methods fedavg fedmrn ...] [--repeats 3]

`vit` and `gpt2` have the shapes of ViT-B/16 and GPT-2. Times are those of the processor in one thread, medians of the
repetitions. A copy is the memory of the model in float32; the peak is that beyond the update and the server's sum. An
update is a sum of 32 products of vectors for each matrix, with noise of a hundredth of them, as after a few steps.
"""

from __future__ import annotations

import argparse
import json
import time
import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from fedmrn_app.config.build import build_run_method
from fedmrn_app.config.compose import load_config
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.shared_context import SharedContext

METHODS = ("fedavg", "fedmrn", "quantized", "eden", "topk")
_RANK = 32
_PIECE = 1 << 17  # elements that the server adds at a time

Shapes = list[tuple[int, ...]]


def transformer(width: int, layers: int, first: Shapes) -> Shapes:
    """Return the shapes of the matrices of a transformer whose feed-forward layers are four times as wide."""
    block: Shapes = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    return [*first, *(block * layers)]


SIZES: dict[str, Shapes] = {
    "1e5": [(300, 300), (30, 300), (10, 100)],
    "1e6": [(1000, 900), (100, 1000)],
    "1e7": [(3100, 3100), (100, 3100)],
    "7e7": [(8192, 64), (8192, 8192), (10, 8192)],
    "vit": transformer(768, 12, [(768, 3, 16, 16), (197, 768), (1000, 768)]),
    "gpt2": transformer(768, 12, [(50257, 768), (1024, 768)]),
    "small": [(24, 24)] * 2000,
}


def update_of(shapes: Shapes) -> Float32Array:
    """Return an update as after a few local steps, float32 (d,)."""
    random = np.random.default_rng(0)
    parts = []
    for shape in shapes:
        n, m = shape[0], int(np.prod(shape[1:]))
        rank = min(_RANK, n, m)
        left = random.standard_normal((n, rank), np.float32) * np.geomspace(1, 0.05, rank, dtype=np.float32)
        part = left @ random.standard_normal((rank, m), np.float32)
        part += np.float32(0.01) * random.standard_normal((n, m), np.float32)
        parts.append(np.float32(1e-3) * part.reshape(-1))
    return np.concatenate(parts)


def measure(method: str, shapes: Shapes, repeats: int) -> dict[str, float]:
    """Return nanoseconds per weight and peak copies of encoding, and of reading and adding, and bits per weight."""
    x, layout = update_of(shapes), Layout(tuple(shapes))
    first = np.random.default_rng(1).standard_normal(x.size, np.float32) * np.float32(0.02)
    now, codec = first + x, build_run_method(load_config((f"strategy={method}",))).codec
    total = np.zeros(x.size, np.float32)

    def add() -> None:
        contribution = codec.read(body, SharedContext(layout, now, first), 1)
        for start in range(0, total.size, _PIECE):
            contribution.add_to(total[start : start + _PIECE], np.float32(1), start)

    def encode() -> None:
        codec.encode(x, SharedContext(layout, now, first), 1, 2)

    body = codec.encode(x, SharedContext(layout, now, first), 1, 2)
    found = {"bits": 8 * len(body) / x.size}
    for name, work in (("encode", encode), ("add", add)):
        tracemalloc.start()  # before the time is taken, because the first call loads compiled loops
        work()
        found[f"{name} copies"] = tracemalloc.get_traced_memory()[1] / (4 * x.size)
        tracemalloc.stop()
        found[name] = float(np.median([_seconds(work) for _ in range(repeats)])) / x.size * 1e9
    return found


def _seconds(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time and memory of codecs per weight.")
    parser.add_argument("--sizes", nargs="+", default=[name for name in SIZES if name != "small"], choices=SIZES)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args(words)
    table = Table("method", "weights", "encode, ns", "copies", "read and add, ns", "copies", "bits")
    with threadpool_limits(1):
        for method in arguments.methods:
            for size in arguments.sizes:
                found = measure(method, SIZES[size], arguments.repeats)
                print(json.dumps({"method": method, "size": size, **found}), flush=True)
                count = sum(int(np.prod(shape)) for shape in SIZES[size])
                table.add_row(
                    method, f"{size}: {count:,}", f"{found['encode']:.1f}", f"{found['encode copies']:.2f}",
                    f"{found['add']:.1f}", f"{found['add copies']:.2f}", f"{found['bits']:.3f}",
                )  # fmt: skip
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
