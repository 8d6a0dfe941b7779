"""What the machine does to a run: a full disk, a start that is too slow, stopped processes."""

import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fedmrn_app.system.atomic_io import full_disk, write_durably
from tests.runtime.command import FEDMRN, start

MOUNTS = subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0
small_disk = pytest.mark.skipif(not MOUNTS, reason="mounts a small file system, which needs root")
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
    """The file of a control group that takes processes, which have 400 MB together beside what they have already."""
    groups = Path("/sys/fs/cgroup")
    first = (groups / "memory").is_dir()  # version 1 of control groups
    group = groups / ("memory" if first else "") / f"fedmrn-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(f"{400 << 20}")
    except OSError:
        pytest.skip("limits memory by a control group, which needs root")
    yield group / "cgroup.procs"
    group.rmdir()


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.long  # moves processes to a control group while they start
def test_run_whose_workers_are_killed_for_want_of_memory_says_so(little_memory: Path, tmp_path: Path) -> None:
    """The activations of a client take more than a gigabyte; the command itself has all the memory that it wants."""
    large = ("model=mlp", "model.hidden=[120000]", "clients=2", "clients_per_round=2", "local.batch_size=1000")
    log = tmp_path / "log"
    process = start((*FEDMRN, *large, "simulation.processes=2", "rounds=1", "hydra.run.dir=run"), tmp_path, log=log)
    limited: set[int] = set()
    deadline = time.monotonic() + 240
    while process.poll() is None:
        assert time.monotonic() < deadline
        for child in psutil.Process(process.pid).children(recursive=True):
            if child.pid not in limited:
                with suppress(OSError):  # it has ended
                    little_memory.write_text(str(child.pid))
                limited.add(child.pid)
        time.sleep(0.02)
    print(log.read_text())
    assert process.returncode == 1
    assert "the machine's memory is full" in log.read_text()
