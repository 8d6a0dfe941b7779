"""Processes end with the one that started them, also when that one is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from fedmrn_app.errors import DiedError, RunError
from fedmrn_app.exchange.clock import Clock
from fedmrn_app.results.checkpoint import State, write_state
from fedmrn_app.runtime.restarts import run_supervised

CHILD = """
import signal, threading, time
from fedmrn_app.system.processes import end_with_parent
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
end_with_parent(grace=0.05, poll=0.01)
for _ in range(20):  # several looks at the parent
    time.sleep(0.05)
print("alive", flush=True)
threading.Event().wait()
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, start_new_session=True, text=True)
print(child.stdout.readline().strip(), child.pid, flush=True)
sys.stdin.read()
"""
COMMAND = """
import os, subprocess, sys, time
from fedmrn_app.system.processes import private_home
sleeper = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '600'], env={})"]
with private_home() as home:
    environment = {**os.environ, "FLWR_HOME": str(home)}
    child = subprocess.Popen(sleeper, env=environment, start_new_session=True)
    time.sleep(0.5)
    print(home, child.pid, flush=True)
    time.sleep(600)
"""


@contextmanager
def command(code: str, *words: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Start Python code, and yield the process and the words of its first line."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()
        process.kill()


@pytest.mark.slow
def test_process_ends_after_its_parent_and_not_before() -> None:
    with command(PARENT, CHILD) as (parent, (alive, pid)):
        assert alive == "alive"
        child = psutil.Process(int(pid))
        parent.kill()
        child.wait(20)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["terminated", "killed"])
def test_nothing_is_left_of_a_private_home(way: str) -> None:
    with command(COMMAND) as (process, (home, pid)):
        started = [psutil.Process(int(pid)), *psutil.Process(int(pid)).children()]
        assert len(started) == 2  # the second one has another environment
        os.kill(process.pid, signal.SIGTERM if way == "terminated" else signal.SIGKILL)
        process.wait(20)
        _, running = psutil.wait_procs(started, timeout=20)
        assert running == []
        while way == "killed" and Path(home).exists():  # the watchdog removes it last
            time.sleep(0.05)
        assert not Path(home).exists()


class Pauses(Clock):
    """Notes the pauses instead of waiting."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


def test_dead_runs_are_restarted_as_often_as_allowed(tmp_path: Path) -> None:
    def supervise(*errors: RunError | None) -> tuple[str, list[float], list[str]]:
        left, clock, lines = list(errors), Pauses(), list[str]()

        def run(values: dict[str, object]) -> None:
            assert values["resume"] is False  # the folder holds no run
            if (error := left.pop(0)) is not None:
                raise error

        try:
            run_supervised(run, {"resume": False}, tmp_path, restarts=2, on_line=lines.append, clock=clock)
        except RunError as error:
            return str(error), clock.seconds, lines
        return f"{len(left)} left", clock.seconds, lines

    died, failed = DiedError("died"), RunError("failed")
    assert supervise(None) == ("0 left", [], [])
    assert supervise(died, died, None) == ("0 left", [5.0, 10.0], ["died; starting again after round 0"] * 2)
    assert supervise(died, died, died, None)[:2] == ("died", [5.0, 10.0])
    assert supervise(failed, None)[:2] == ("failed", [])


def test_finished_rounds_allow_as_many_restarts_again(tmp_path: Path) -> None:
    rounds, resumed, clock, lines = [1, 2, 3, 3], list[bool](), Pauses(), list[str]()

    def run(values: dict[str, bool]) -> None:
        resumed.append(values["resume"])
        write_state(tmp_path, State({}, {"round": rounds[len(resumed) - 1]}))
        raise DiedError("died")

    with pytest.raises(DiedError):
        run_supervised(run, {"resume": False}, tmp_path, restarts=1, on_line=lines.append, clock=clock)
    assert resumed == [False, True, True, True]
    assert lines == [f"died; starting again after round {number}" for number in (1, 2, 3)]
    assert clock.seconds == [5.0] * 3
