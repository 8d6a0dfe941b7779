"""What the machine does to a run: a full disk, a start that is too slow, stopped processes."""

import json
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fedmrn_app.config.build import resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.errors import DiedError
from fedmrn_app.exchange.clock import Clock
from fedmrn_app.runtime.restarts import run_supervised
from fedmrn_app.runtime.simulation import died_error, run_simulation
from fedmrn_app.system.atomic_io import full_disk, write_durably
from tests.reference import reference_run
from tests.runtime.command import FEDMRN, finish, start

MOUNTS = subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0
small_disk = pytest.mark.skipif(not MOUNTS, reason="mounts a small file system, which needs root")
STARTUP = """
Traceback (most recent call last):
Exception: The current node timed out during startup. This could happen because some of the raylet failed to startup.
RuntimeError: Simulation Runtime crashed.
RuntimeError: An error was encountered. Ending simulation.
"""
WRITE = """
import sys
from pathlib import Path
from fedmrn_app.system.atomic_io import full_disk, os_reason, write_durably
try:
    write_durably(Path("state"), bytes(1 << 20))
except OSError as error:
    print(os_reason(error))
Path("filler").write_bytes(b"")
with open("filler", "wb", buffering=0) as file, __import__("contextlib").suppress(OSError):
    while True:
        file.write(bytes(4096))
print(full_disk(Path("/tmp"), Path.cwd()))
"""


def on_small_disk(folder: Path, kilobytes: int, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run a command that finds a small file system in a folder."""
    mount = f"mount -t tmpfs -o size={kilobytes}k none {folder} && cd {folder} && exec {shlex.join(words)}"
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", mount], capture_output=True, text=True, timeout=400, check=False, env=os.environ
    )


@small_disk
def test_full_disk_is_named_with_the_file(tmp_path: Path) -> None:
    ended = on_small_disk(tmp_path, 512, (FEDMRN[0], "-c", WRITE))
    reason, folder = ended.stdout.splitlines()
    assert reason == "no space left on device: state; make room, and resume the run"
    assert folder == str(tmp_path)
    assert full_disk(tmp_path) is None


def test_failed_write_leaves_no_part(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with pytest.raises(OSError, match="state"):
        write_durably(tmp_path / "state", b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_reason_of_a_death_is_the_first_library_s_own(tmp_path: Path) -> None:
    (tmp_path / "flower.log").write_text(STARTUP)
    error = died_error(tmp_path, None)
    assert "The current node timed out during startup" in str(error)
    assert "RuntimeError" not in str(error)
    assert error.code == "start"
    full = died_error(tmp_path, tmp_path)
    assert full.code == "disk-full"
    assert str(full).startswith(f"no space left on device: {tmp_path}")
    starved = died_error(tmp_path, None, starved=True)
    assert starved.code == "memory"
    assert str(starved).startswith("out of memory: the system killed a process")
    (tmp_path / "flower.log").write_text("")
    assert died_error(tmp_path, None).code == "died"


def test_start_that_was_too_slow_is_tried_once_more(tmp_path: Path) -> None:
    class Skips(Clock):
        def sleep(self, seconds: float) -> None:
            assert seconds == 5.0

    def ends_with(*codes: str) -> tuple[int, str]:
        left = list(codes)

        def run(values: dict[str, object]) -> None:
            if left:
                code = left.pop(0)
                raise DiedError(code, code=code)

        try:
            run_supervised(run, {}, tmp_path, restarts=0, on_line=lambda line: None, clock=Skips())
        except DiedError as error:
            return len(left), error.code
        return len(left), ""

    assert ends_with("start") == (0, "")
    assert ends_with("start", "start", "start") == (1, "start")
    assert ends_with("died", "start") == (1, "died")


@small_disk
@pytest.mark.flower
@pytest.mark.slow
def test_run_on_a_full_disk_ends_in_one_line(tmp_path: Path) -> None:
    settings = ("rounds=200", "clients=2", "clients_per_round=2", "local.steps=1", "hydra.run.dir=.")
    ended = on_small_disk(tmp_path, 240, (*FEDMRN, *settings))
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "no space left on device" in line
    assert str(tmp_path) in line


@pytest.fixture
def little_memory() -> Iterator[Path]:
    """The file of a control group that takes processes, which have 1,400 MB together."""
    groups = Path("/sys/fs/cgroup")
    first = (groups / "memory").is_dir()  # version 1 of control groups
    group = groups / ("memory" if first else "") / f"fedmrn-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(f"{1400 << 20}")
    except OSError:
        pytest.skip("limits memory by a control group, which needs root")
    yield group / ("tasks" if first else "cgroup.procs")
    group.rmdir()


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.long  # which process the system kills depends on the machine
def test_run_that_is_killed_for_want_of_memory_says_so(little_memory: Path, tmp_path: Path) -> None:
    words = ("sh", "-c", f'echo $$ > {little_memory} && exec "$@"', "sh", *FEDMRN, "rounds=50", "hydra.run.dir=run")
    ended = finish(words, tmp_path)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith("fedmrn: out of memory: the system killed a process")


@pytest.mark.flower
@pytest.mark.slow
def test_real_start_that_is_too_slow_is_named_and_tried_again(tmp_path: Path) -> None:
    """The process that Ray waits for stands still, as it may on a busy machine, until Ray gives up after 30 seconds."""
    log = tmp_path / "log"
    command = start((*FEDMRN, "rounds=1", "hydra.run.dir=run"), tmp_path, log=log)
    stopped = False
    while not stopped:
        assert command.poll() is None, log.read_text()
        for process in psutil.Process(command.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if process.name() == "raylet":
                    process.send_signal(signal.SIGSTOP)
                    stopped = True
        time.sleep(0.05)
    assert command.wait(300) == 0, log.read_text()
    (line,) = (line for line in log.read_text().splitlines() if "died" in line)
    assert "The current node timed out during startup" in line
    assert line.endswith("starting again after round 0")


@pytest.mark.flower
@pytest.mark.slow
def test_actor_that_stands_still_for_longer_than_a_minute_changes_nothing(tmp_path: Path) -> None:
    overrides = ("rounds=12", "clients=4", "clients_per_round=4", "local.epochs=1")
    values, config, _ = resolve_from_data(compose_values(overrides))
    stopped = list[int]()

    def stop() -> None:
        rounds = tmp_path / "rounds.csv"
        while not rounds.is_file() or len(rounds.read_text().splitlines()) < 4:
            time.sleep(0.05)
        while not stopped:
            for process in psutil.Process().children(recursive=True):
                if "LastingActor.run" in " ".join(process.cmdline()):
                    process.send_signal(signal.SIGSTOP)
                    stopped.append(process.pid)
                    time.sleep(100)
                    process.send_signal(signal.SIGCONT)
                    return

    threading.Thread(target=stop, daemon=True).start()
    run_simulation(values, config, tmp_path)
    assert stopped
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["clients_failed"] == 0
    assert summary["weights_sha256"] == reference_run(overrides)
