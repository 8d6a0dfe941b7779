"""The peak memory of this process while it is watched."""

from __future__ import annotations

import ctypes
import sys
import time
from threading import Event, Thread

import psutil


class PeakMemory(Thread):
    """The peak memory of this process in MiB while it is watched, beyond what it had before."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.process = psutil.Process()
        self.before = self.peak = self.process.memory_info().rss
        self.worked = 0.0  # seconds that watching took
        self.done = Event()

    def run(self) -> None:
        """Measure every two milliseconds."""
        return_freed_memory()
        while not self.done.wait(0.002):
            self.peak = max(self.peak, self.process.memory_info().rss)
        self.worked = time.thread_time()

    def stop(self) -> float:
        """Stop measuring and return the peak."""
        self.done.set()
        self.join()
        return float(self.peak - self.before) / 2**20


def return_freed_memory() -> None:
    """Return freed memory to the system through glibc, so that it does not count as memory in use."""
    if sys.platform.startswith("linux") and hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)
