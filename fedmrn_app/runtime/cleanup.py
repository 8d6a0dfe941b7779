"""Processes that end with what started them: by a private home, or by any other mark in their environment."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import FrameType

import psutil

_PREFIX = "fedmrn-"  # of private homes
_LOOK_SECONDS = 1.0


@contextmanager
def private_home() -> Iterator[Path]:
    """A temporary FLWR_HOME; on leaving, every process started with it is ended and the folder removed."""
    base = "/tmp" if os.path.isdir("/tmp") else None  # short: Ray's sockets below it have at most 107 characters
    home = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))

    def clean() -> None:
        end_processes("FLWR_HOME", str(home))
        shutil.rmtree(home, ignore_errors=True)

    with cleaned_up(clean):
        yield home


@contextmanager
def cleaned_up(clean: Callable[[], None]) -> Iterator[None]:
    """On leaving, for whatever reason, clean up; SIGTERM and SIGHUP leave."""
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


def end_with_parent(grace: float = 5.0) -> None:
    """From now on, end this process so many seconds after its parent, whatever it waits for by then.

    Flower asks a process whose parent has died to end, which one that waits for a dead SuperLink does not do.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        time.sleep(grace)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def find_process(variable: str, value: str, command: str) -> psutil.Process | None:
    """The process of a command that has this in its environment, if there is one now."""
    for process in psutil.process_iter():
        if _environ(process).get(variable) == value and any(command in word for word in process.cmdline()):
            return process
    return None


def has_ended(process: psutil.Process) -> bool:
    """Whether a process is no longer at work, be it waited for or not."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def end_leftovers(variable: str, value: str) -> None:
    """End what a killed process has left, see `end_processes`, and remove the private homes that it worked in."""
    processes = [process for process in psutil.process_iter() if _environ(process).get(variable) == value]
    homes = {Path(_environ(process).get("FLWR_HOME", "")) for process in processes}
    end_processes(variable, value)
    for home in homes:
        if home.name.startswith(_PREFIX):
            shutil.rmtree(home, ignore_errors=True)


def end_processes(variable: str, value: str) -> None:
    """End all processes with this in their environment, and what they started: SuperLink, simulation, Ray, actors."""
    for _ in range(50):
        found = {process for process in psutil.process_iter() if _environ(process).get(variable) == value}
        if not found:
            return
        for process in list(found):
            found.update(_descendants(process))  # Ray's agents write their names over their environment
        for process in found:
            try:
                process.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(found, timeout=5)


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        children: list[psutil.Process] = process.children(recursive=True)
    except psutil.Error:
        return []
    return children


def _environ(process: psutil.Process) -> Mapping[str, str]:
    try:
        environ: Mapping[str, str] = process.environ()
    except (psutil.Error, OSError):
        return {}
    return environ
