"""The peak memory and processor seconds of the processes that this one has started, by kind."""

from __future__ import annotations

from collections import defaultdict
from threading import Event, Thread

import psutil

_KINDS = {"flwr-simulation": "server", "ray::": "client process", "raylet": "raylet", "gcs_server": "gcs"}


class Usage(Thread):
    """Watches all processes below this one.

    Attributes:
        peak: MiB of resident memory that a process of each kind took at most.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak: dict[str, float] = {}
        self._worked: dict[psutil.Process, tuple[str, float]] = {}
        self._done = Event()

    def run(self) -> None:
        """Measure twice a second."""
        while not self._done.wait(0.5):
            self.look()

    def look(self) -> None:
        """Measure once."""
        for process in psutil.Process().children(recursive=True):
            try:
                kind, times = _kind(process), process.cpu_times()
                memory = process.memory_info().rss / 2**20
            except psutil.Error:
                continue
            self.peak[kind] = max(self.peak.get(kind, 0.0), memory)
            self._worked[process] = kind, times.user + times.system

    def worked(self) -> dict[str, float]:
        """Return the processor seconds of each kind of process so far."""
        self.look()
        seconds: dict[str, float] = defaultdict(float)
        for kind, worked in list(self._worked.values()):
            seconds[kind] += worked
        return dict(seconds)

    def stop(self) -> None:
        """Stop measuring."""
        self._done.set()
        self.join()


def _kind(process: psutil.Process) -> str:
    line = " ".join(process.cmdline()[:4])
    if "ray::" in line and "Actor" not in line:
        return "other"
    return next((kind for name, kind in _KINDS.items() if name in line), "other")
