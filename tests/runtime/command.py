"""Starts the commands as people type them, and watches their runs."""

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

FEDMRN = (sys.executable, "-m", "fedmrn_app.runtime.command")
DEPLOY = (sys.executable, "-m", "fedmrn_app.deploy.cli")


def hear_signals() -> None:
    """Undo what a process in the background ignores, and its children with it."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(
    words: tuple[str, ...],
    cwd: Path,
    *,
    log: Path | None = None,
    environment: Mapping[str, str] | None = None,
    session: bool = False,
) -> subprocess.Popen[str]:
    """Start a command; its output goes to a log, or to pipes."""
    with (log or Path(os.devnull)).open("w") as file:
        output, errors = (subprocess.PIPE, subprocess.PIPE) if log is None else (file, file)
        return subprocess.Popen(
            words, cwd=cwd, stdout=output, stderr=errors, text=True, env=environment,
            preexec_fn=hear_signals, start_new_session=session,
        )  # fmt: skip


def finish(words: tuple[str, ...], cwd: Path, **options: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    process = start(words, cwd, **options)  # type: ignore[arg-type]
    output, errors = process.communicate(timeout=300)
    print(output, errors)
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


def column(folder: Path, name: str = "round") -> list[int]:
    """Return a column of the rounds.csv of a run, nothing before the file is written."""
    path = folder / "rounds.csv"
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [int(row[name]) for row in csv.DictReader(file)]


def wait_for_rounds(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Wait until a run has `count` rounds; its command must still be running then."""
    deadline = time.monotonic() + 240
    while len(column(folder)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert process.poll() is None


def environments(variable: str, value: str) -> dict[psutil.Process, dict[str, str]]:
    """Return the running processes with a variable in their environment, and their environments."""
    found = {}
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if environment.get(variable) == value and process.status() != psutil.STATUS_ZOMBIE:
                found[process] = environment
        except (psutil.Error, OSError):
            continue
    return found
