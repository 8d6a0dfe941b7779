"""Starts processes, and ends them: after a normal stop, and after a kill of the command that has started them.

Everything that `fedmrn-deploy try` starts has a private FLWR_HOME in its environment. When the command stops, it ends
the processes with this home. A watchdog process does the same when the command is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import IO

import psutil

_PREFIX = "fedmrn-"  # of private homes
_POLL_SECONDS = 0.5
_PASSES = 10  # a process may start another one while it is killed


def command(name: str) -> str:
    """Return the path of a command of this Python environment."""
    return str(Path(sys.executable).with_name(name))


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def start(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path | int | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, so that Ctrl-C reaches only the process that started it.

    Args:
        words: the command.
        folder: working folder of the process.
        environment: of the process.
        log: file to append the output to, or `subprocess.PIPE`; None for this process's own output.
    """
    file = log.open("ab") if isinstance(log, Path) else None
    output: IO[bytes] | int | None = file or (log if isinstance(log, int) else None)
    try:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if log is not None else None,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
    finally:
        if file is not None:
            file.close()


@contextmanager
def private_home() -> Iterator[Path]:
    """Make a temporary FLWR_HOME; on leaving, end every process started with it and remove the folder.

    A watchdog does so if this process is killed.
    """
    base = "/tmp" if os.path.isdir("/tmp") else None  # short: Ray's sockets below it have at most 107 characters
    home = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    words = [sys.executable, "-m", "fedmrn_app.system.processes", str(home), str(os.getpid())]
    silent = subprocess.DEVNULL  # it must not hold open a pipe that somebody reads to its end
    watchdog = subprocess.Popen(words, stdin=silent, stdout=silent, stderr=silent, start_new_session=True)

    def clean() -> None:
        _end_home(home)
        watchdog.kill()
        watchdog.wait()

    with cleaned_up(clean):
        yield home


def watch(home: Path, parent: int) -> None:
    """Wait until the parent process is gone, then end every process started with a private home and remove it."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    _end_home(home)


def _end_home(home: Path) -> None:
    end_processes("FLWR_HOME", str(home))
    shutil.rmtree(home, ignore_errors=True)


@contextmanager
def cleaned_up(clean: Callable[[], None]) -> Iterator[None]:
    """Call `clean` on leaving, also after an error; SIGTERM and SIGHUP become SystemExit inside."""
    previous = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not stop the clean-up
        clean()
        for number, handler in {**previous, signal.SIGINT: interrupt}.items():
            signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def end_with_parent(grace: float = 5.0, poll: float = 1.0, *, ask: bool = False) -> None:
    """Exit this process some seconds after its parent has died, even if it waits for something then.

    Flower asks a process whose parent has died to end, but a process that waits for a dead SuperLink does not do so.

    Args:
        grace: seconds between the parent's death and the exit.
        poll: seconds between two looks at the parent.
        ask: whether this process is sent SIGTERM at first, for what nothing else asks to end.
    """
    parent = os.getppid()

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(poll)
        if ask:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
        os._exit(1)

    Thread(target=wait, daemon=True).start()


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process no longer runs; one that nobody has waited for yet counts as ended."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def end_processes(variable: str, value: str) -> None:
    """Kill all processes with this variable in their environment, and all processes that those have started."""
    for _ in range(_PASSES):
        found = set(_marked(variable, value))
        for process in tuple(found):
            with suppress(psutil.Error):
                found.update(process.children(recursive=True))  # Ray's agents write their names over their environment
        if not found:
            return
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=5)


def _marked(variable: str, value: str) -> dict[psutil.Process, dict[str, str]]:
    """Return the processes with this variable in their environment, and their environments."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            environment = process.environ()
            if environment.get(variable) == value:
                found[process] = environment
    return found


if __name__ == "__main__":
    watch(Path(sys.argv[1]), int(sys.argv[2]))
