"""Benchmark of aggregations, each in its own process, see `server_process.py`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

WEIGHTS = (1_000_000, 11_000_000)
REPLIES = (10, 100, 1000)
THREADS = (1, 2)
MOST_CODED = 1_000_000_000  # weights in all; the time is in proportion, and long


def bench_server(arguments: argparse.Namespace) -> Any:
    """Print a row per setting: seconds, ns per weight and reply, and memory beyond the payloads."""
    table = Table(
        "weights", "replies", "coder", "threads", "seconds", "CPU ns per weight", "ns per weight",
        "copying one, times", "memory, MiB",
        "payloads, MiB", "memory beyond them, float32 copies",
    )  # fmt: skip
    found = []
    for coder in ("packed", "auto"):
        for weights in WEIGHTS:
            for replies in REPLIES:
                if coder == "auto" and weights * replies > MOST_CODED:
                    continue
                for threads in THREADS:
                    row = aggregate(weights, replies, coder, threads)
                    found.append(row)
                    copies = (row["memory"] - row["payloads"]) / (4 * weights / 2**20)
                    each = 1e9 / weights / replies
                    table.add_row(
                        f"{weights:,}", f"{replies:,}", coder, str(threads), f"{row['seconds']:.2f}",
                        f"{each * row['cpu']:.2f}", f"{each * row['seconds']:.2f}", f"{row['copies']:.1f}",
                        f"{row['memory']:.0f}", f"{row['payloads']:.0f}", f"{copies:.2f}",
                    )  # fmt: skip
    Console().print(table)
    return found


def aggregate(weights: int, replies: int, coder: str, threads: int) -> dict[str, Any]:
    """Return what `server_process.py` prints."""
    command = [sys.executable, "-m", "scripts.benchmarks.server_process", str(weights), str(replies), coder]
    command.append(str(threads))
    root = Path(__file__).parents[2]
    row: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=root).stdout
    )
    return row
