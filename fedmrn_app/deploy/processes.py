"""Processes that live and end together."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from fedmrn_app.runtime.cleanup import cleaned_up

_END_SECONDS = 15.0  # for a process to end by itself
_POLL_SECONDS = 0.2


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


def wait_for_first(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait until one of the processes ends, and return its exit status."""
    while True:
        for process in processes:
            if (status := process.poll()) is not None:
                return status
        time.sleep(_POLL_SECONDS)
