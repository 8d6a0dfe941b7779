"""Processes that live and end together."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil

from fedmrn_app.system.processes import cleaned_up, has_ended

_END_SECONDS = 15.0  # for a process to end by itself
_POLL_SECONDS = 1.0


@contextmanager
def together() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield a list to add processes to; all of them are ended on leaving, also by SIGTERM."""
    processes: list[subprocess.Popen[bytes]] = []
    with cleaned_up(partial(end, processes)):
        yield processes


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask all processes to end, then kill those that have not ended, and what they have left in their sessions."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + _END_SECONDS
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # each process has a group of its own


def wait_for_first(processes: Sequence[subprocess.Popen[bytes]]) -> tuple[int | None, str]:
    """Wait until one of the processes ends; return its exit status and what has happened.

    A SuperLink and a SuperNode live on when their SuperExec has died, but no message and no run is started then. This
    counts as their end, without a status.
    """
    watched = [SuperExecWatch(process.pid) for process in processes]
    while True:
        for process, watch in zip(processes, watched, strict=True):
            lost = watch.lost()
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(_END_SECONDS if lost else 0)  # one that ends may end its SuperExec first
                return status, f"ended with status {status}"
            if lost:
                return None, "has lost its SuperExec, which starts what it is asked to run"
        time.sleep(_POLL_SECONDS)


class SuperExecWatch:
    """Notices that the SuperExec which a process of Flower's has started is dead."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._found: psutil.Process | None = None

    def lost(self) -> bool:
        """Return whether there was a SuperExec that no longer runs."""
        if self._found is None:
            with suppress(psutil.Error):
                for child in psutil.Process(self._parent).children():
                    if any(Path(word).name == "flower-superexec" for word in child.cmdline()):
                        self._found = child
        return self._found is not None and has_ended(self._found)
