"""Measure the speed of the project's parts. Every figure is a ratio of two things that run alternately.

Usage: python scripts/benchmark.py PART [options] [--json FILE]

    step     a local step of every method against plain SGD's, and of FedMRN against the layer-wise way
    threads  a local step with one thread, two, ...
    epoch    one local epoch of FedMRN on CNN4 in float32 and bfloat16 against the layer-wise way
    codec    compressing and decoding an update, per million weights
    round    simulated rounds against the local training of their clients; needs --data, Fashion-MNIST's folder
    optimizers  a step of the plug-in's optimizers against the same without masks, on CNN4
    scale    simulated rounds of many clients: start, time and memory; --peer: Flower's FedAvg takes turns
    warm     a device's warm process: memory while it waits
    socket   bytes at real SuperNodes' sockets, per round and node, beside those that a run reports, on CNN4
    plugin   the quickstart plain, with EDEN and with FedMRN: accuracy and bytes; --data, CIFAR-10's folder

Tables show the median and, in brackets, the minimum and maximum of the repetitions.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fedmrn_app.learning.memory import keep_freed_memory
from fedmrn_app.learning.sgd import PRECISIONS
from scripts.benchmarks.clients import MODELS
from scripts.benchmarks.codec import bench_codec
from scripts.benchmarks.optimizers import bench_optimizers
from scripts.benchmarks.plugin import bench_plugin
from scripts.benchmarks.round import bench_round
from scripts.benchmarks.scale import bench_scale
from scripts.benchmarks.socket_bytes import bench_socket
from scripts.benchmarks.steps import bench_epoch, bench_step, bench_threads
from scripts.benchmarks.warm import bench_warm

PARTS = {
    "step": bench_step,
    "threads": bench_threads,
    "epoch": bench_epoch,
    "codec": bench_codec,
    "round": bench_round,
    "scale": bench_scale,
    "warm": bench_warm,
    "socket": bench_socket,
    "plugin": bench_plugin,
    "optimizers": bench_optimizers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Ratios of times, each of two things run alternately.")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--models", nargs="+", default=["cnn4", "cnn8", "mlp"], choices=MODELS)
    parser.add_argument("--methods", nargs="+", help="all by default")
    parser.add_argument("--precision", default="float32", choices=PRECISIONS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20, help="local steps that are timed at a time")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--inner", default="fedavg", help="`plugin`: the strategy inside: fedavg, fedadam or fedprox")
    parser.add_argument("--data")
    parser.add_argument("--clients", nargs="+", type=int, default=[1000, 100_000], help="in `scale`")
    parser.add_argument("--per-round", type=int, default=1000, help="clients of a round in `scale`")
    parser.add_argument("--peer", action="store_true", help="`scale`: beside Flower's own federated averaging")
    parser.add_argument("--images", type=int, default=0, help="of a client in `plugin`; 0 for all")
    parser.add_argument("--tune", action="store_true", help="`plugin`: settings, on training images held out")
    parser.add_argument("--json", type=Path, help="a file that the figures are written to")
    arguments = parser.parse_args()
    keep_freed_memory()
    found = PARTS[arguments.part](arguments)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({arguments.part: found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
