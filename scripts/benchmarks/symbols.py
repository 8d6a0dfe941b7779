"""The coder of symbols against constriction's, which gives the same bytes as a single lane: times and lengths.

Usage: pip install constriction && python -m scripts.benchmarks.symbols [--repeats N] [--count N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedmrn_app.kernels.symbol_rans import STEPS
from fedmrn_app.methods.quantizers import lloyd_max
from fedmrn_app.wire.entropy import LANES, SymbolReader, categorical, encode_symbols, geometric_weights
from scripts.benchmarks.timing import Run, Timing, compare
from tests.plain.constriction_coder import peer_decode, peer_encode

WEIGHTS = {
    "levels of 2 bits": lloyd_max(2).cells.astype(np.float64),
    "levels of 4 bits": lloyd_max(4).cells.astype(np.float64),
    "a lattice, few moved": np.array([1.0, 98, 1]),
    "a lattice, many moved": np.array([2.0, 9, 30, 60, 30, 9, 2]),
    "differences in 255 steps": geometric_weights(127, 245),
    "a palette of 256": np.arange(1.0, 257) ** 2,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Ratios of times, each of two things run alternately.")
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--count", type=int, default=1_000_000, help="number of symbols")
    arguments = parser.parse_args()
    table = Table("symbols", "lanes", "encoding", "decoding", "bytes", "more bytes")
    for name, weights in WEIGHTS.items():
        edges = categorical(weights)
        shares = (edges[1:] - edges[:-1]) / STEPS
        symbols = np.random.default_rng(0).choice(np.arange(shares.size, dtype=np.uint8), arguments.count, p=shares)
        peer = peer_encode(symbols, weights)
        for lanes in (1, LANES):
            coded = encode_symbols([(symbols, categorical(weights))], lanes)
            encoding = ratio(
                partial(encode_symbols, [(symbols, categorical(weights))], lanes),
                partial(peer_encode, symbols, weights),
                arguments.repeats,
            )
            decoding = ratio(
                partial(decode, coded, weights, arguments.count, lanes),
                partial(peer_decode, peer, weights, arguments.count),
                arguments.repeats,
            )
            more = f"{len(coded) - len(peer)}, {100 * (len(coded) / len(peer) - 1):.3f}%"
            table.add_row(name, str(lanes), str(encoding), str(decoding), str(len(coded)), more)
    Console(width=140).print(table)


def ratio(work: Callable[[], Any], peer: Callable[[], Any], repeats: int) -> Timing:
    """Return the time of `work` relative to that of `peer`."""
    return compare({"ours": timed(work), "peer": timed(peer)}, "peer", repeats)["ours"]


def timed(work: Callable[[], Any]) -> Run:
    """Return a function that measures the processor time of `work`, which other processes hardly lengthen."""

    def run() -> float:
        start = time.thread_time()
        work()
        return time.thread_time() - start

    return run


def decode(data: bytes, weights: NDArray[np.float64], count: int, lanes: int) -> NDArray[np.uint16]:
    """Return the symbols, uint16 (count,)."""
    return SymbolReader(data, lanes).read(categorical(weights), count)


if __name__ == "__main__":
    main()
