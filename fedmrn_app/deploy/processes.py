"""Processes that live and end together: started with Flower's settings, ended with the one that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from fedmrn_app.runtime.cleanup import cleaned_up

_END_SECONDS = 15.0  # for a process to end by itself
_POLL_SECONDS = 0.2


def service_environment(home: Path, path: Sequence[Path] = ()) -> dict[str, str]:
    """Of Flower's processes: a home of their own, unless one is set, and this Python environment's commands first.

    Args:
        home: for what Flower unpacks.
        path: folders whose commands come before those.
    """
    folders = [*map(str, path), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_HOME": str(home),
        **os.environ,
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": os.pathsep.join(folders),
        "PYTHONUNBUFFERED": "1",
    }


@contextmanager
def together() -> Iterator[list[subprocess.Popen[bytes]]]:
    """A list of processes to add to; on leaving, for whatever reason, all of them are ended. SIGTERM leaves."""
    processes: list[subprocess.Popen[bytes]] = []
    with cleaned_up(partial(end, processes)):
        yield processes


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask all to end, then kill those that have not."""
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
            os.killpg(process.pid, signal.SIGKILL)  # what it has started and left: each has a group of its own


def wait_for_first(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait until one of them ends, and return its exit status."""
    while True:
        for process in processes:
            if (status := process.poll()) is not None:
                return status
        time.sleep(_POLL_SECONDS)


def start(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], log: int | None
) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own, so that Ctrl-C reaches only who started it.

    Args:
        words: the command.
        folder: to run it in.
        environment: of the process.
        log: descriptor that it writes to; None for this process's own output.
    """
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=environment, start_new_session=True
    )
