"""Runs whose processes are killed or whose clients fail: finished rounds stay, and a resumed run ends undisturbed."""

import json
import random
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.reference import reference_run
from tests.runtime.command import FEDMRN, column, finish, start, wait_for_rounds

pytestmark = [pytest.mark.flower, pytest.mark.slow]

SMALL = (
    "clients=4",
    "clients_per_round=3",
    "local.epochs=1",
    "strategy=topk",
    "strategy.error_feedback=true",
    "downlink.dtype=quantized",
)
FAILING = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, classes))

    def forward(self, x):
        if self.training and torch.initial_seed() % 4:  # differs between clients and rounds
            raise RuntimeError("the sensor is broken")
        return super().forward(x)
"""


def words(folder: Path, *more: str) -> tuple[str, ...]:
    return (*FEDMRN, f"hydra.run.dir={folder}", *SMALL, *more)


def workers(pid: int) -> list[psutil.Process]:
    """Return the workers of a command, which are the children of its fork server."""
    return [worker for server in psutil.Process(pid).children() for worker in server.children()]


def weights(folder: Path) -> str:
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["clients_failed"] == 0
    return str(summary["weights_sha256"])


@pytest.mark.parametrize("way", [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=pytest.mark.long)])
def test_one_command_line_survives_a_scheduler(way: signal.Signals, tmp_path: Path) -> None:
    command = words(tmp_path / "run", "rounds=8", "local.epochs=3", "resume=auto")
    run = start(command, tmp_path)
    wait_for_rounds(tmp_path / "run", 2, run)
    run.send_signal(way)
    _, errors = run.communicate(timeout=60)
    assert (run.returncode, f"{way.name}: stopped after round" in errors) == (75, True)
    assert not (tmp_path / "run" / "error.txt").exists()
    assert "resume=auto goes on" in (tmp_path / "run" / "run.log").read_text()
    again = finish(command, tmp_path)
    assert again.returncode == 0, again.stderr
    assert weights(tmp_path / "run") == reference_run((*SMALL, "rounds=8", "local.epochs=3"))


def test_a_job_that_changes_its_folder_finds_code_and_data(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(FAILING.replace("torch.initial_seed() % 4", "False"))
    stored = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=stored, y=np.arange(40) % 2)
    more = ("hydra.job.chdir=True", "model=own", "model._target_=nets.Net", "dataset=own", "dataset.path=rows.npz")
    run = finish(words(tmp_path / "run", "rounds=1", *more), tmp_path)
    assert run.returncode == 0, run.stderr


@pytest.mark.long
def test_ten_killed_workers_change_nothing(tmp_path: Path) -> None:
    run, chance = start(words(tmp_path / "run", "rounds=30", "local.epochs=3"), tmp_path), random.Random(0)
    wait_for_rounds(tmp_path / "run", 1, run)
    killed = set[int]()
    while len(killed) < 10 and run.poll() is None:
        for worker in workers(run.pid):
            if worker.pid not in killed and len(killed) < 10:
                worker.kill()
                killed.add(worker.pid)
                break
        time.sleep(chance.uniform(0.05, 0.5))
    _, errors = run.communicate(timeout=240)
    assert run.returncode == 0, errors
    assert len(killed) == 10
    assert weights(tmp_path / "run") == reference_run((*SMALL, "rounds=30", "local.epochs=3"))


@pytest.mark.parametrize(
    ("rounds", "way"),
    [
        (0, signal.SIGKILL),
        (2, signal.SIGINT),
        *(
            pytest.param(*one, marks=pytest.mark.long)
            for one in ((0, signal.SIGINT), (0, signal.SIGHUP), (2, signal.SIGHUP), (2, signal.SIGKILL))
        ),
    ],
)
def test_killed_command_leaves_nothing_and_resumes(rounds: int, way: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = words(folder, "rounds=8", "local.epochs=3")
    run = start(command, tmp_path)
    if rounds:
        wait_for_rounds(folder, rounds, run)
    else:
        while not psutil.Process(run.pid).children():
            time.sleep(0.01)
    family = psutil.Process(run.pid).children(recursive=True)
    run.send_signal(way)
    run.communicate(timeout=20)
    _, running = psutil.wait_procs(family, timeout=5)
    assert running == []
    if rounds:
        refused = finish(command, tmp_path)
        assert refused.returncode == 1
        assert "holds a run already" in refused.stderr
    resumed = finish((*command, "resume=true") if rounds else command, tmp_path)
    assert resumed.returncode == 0
    assert column(folder) == list(range(1, 9))
    assert weights(folder) == reference_run((*SMALL, "rounds=8", "local.epochs=3"))
    again = finish((*command, "resume=true"), tmp_path)
    assert again.returncode == 0
    assert "has its 8 rounds already" in again.stdout


def test_two_commands_do_not_work_in_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = start(words(folder, "rounds=500"), tmp_path)
    wait_for_rounds(folder, 1, run)
    other = finish(words(folder, "rounds=500", "resume=true"), tmp_path)
    assert other.returncode == 1
    assert "another fedmrn is at work in it" in other.stderr
    run.kill()
    run.communicate()


def test_a_run_opens_no_port(tmp_path: Path) -> None:
    run = start(words(tmp_path / "run", "rounds=500"), tmp_path)
    wait_for_rounds(tmp_path / "run", 1, run)
    family = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
    assert len(family) == 4  # the command, the fork server, two workers
    assert not [link for one in family for link in one.net_connections("inet")]
    run.kill()
    run.communicate()


def test_run_in_which_most_clients_fail_ends_with_an_error(tmp_path: Path) -> None:
    (tmp_path / "brought.py").write_text(FAILING)
    settings = ("clients=20", "clients_per_round=20", "rounds=9", "local.epochs=1", "hydra.run.dir=run")
    run = finish((*FEDMRN, *settings, "model=own", "model._target_=brought.Net"), tmp_path)
    assert run.returncode == 1
    (line,) = run.stderr.splitlines()
    assert "round 3: most clients failed in 3 rounds in a row" in line
    assert "the sensor is broken" in line
    assert "most clients failed" not in run.stdout
    assert "error: " in (tmp_path / "run" / "run.log").read_text()
    assert not (tmp_path / "run" / "summary.json").exists()
    assert column(tmp_path / "run") == [1, 2]
