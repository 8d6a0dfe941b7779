"""The most memory that this process takes while it is watched."""

from __future__ import annotations

from threading import Event, Thread

import psutil


class PeakMemory(Thread):
    """The most memory in MiB that this process has had while it was watched, beyond what it had before."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.process = psutil.Process()
        self.before = self.peak = self.process.memory_info().rss
        self.done = Event()

    def run(self) -> None:
        """Look every millisecond."""
        while not self.done.wait(0.001):
            self.peak = max(self.peak, self.process.memory_info().rss)

    def stop(self) -> float:
        """End watching and return the peak."""
        self.done.set()
        self.join()
        return float(self.peak - self.before) / 2**20
