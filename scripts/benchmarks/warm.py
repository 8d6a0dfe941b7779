"""The memory of a device's warm process while it waits for messages, and the time that it takes to get ready."""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from fedmrn_app.deploy.fork_server import SOCKET, warm_words

_TIMEOUT = 300.0  # seconds, of which compiling takes most in the first run


def bench_warm(arguments: argparse.Namespace) -> dict[str, float]:
    """Start a warm process as a device does, twice: the first one compiles; print the figures of the second one."""
    for _ in range(2):
        found = _measure()
    table = Table("", "")
    for name, value in found.items():
        table.add_row(name, f"{value:.1f}")
    Console().print(table)
    return found


def _measure() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        process = subprocess.Popen(warm_words(Path(folder)))
        try:
            while not (Path(folder) / SOCKET).exists():
                if process.poll() is not None or time.monotonic() > start + _TIMEOUT:
                    raise RuntimeError(f"the warm process is not ready; its exit status is {process.poll()}")
                time.sleep(0.05)
            ready = time.monotonic() - start
            memory = psutil.Process(process.pid).memory_full_info()
        finally:
            process.terminate()
            process.wait()
    return {"resident, MB": memory.rss / 1e6, "of which private, MB": memory.uss / 1e6, "ready after, s": ready}
