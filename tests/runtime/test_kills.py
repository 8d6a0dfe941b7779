"""Runs whose processes are killed or whose clients fail: finished rounds stay, and a resumed run ends undisturbed."""

import json
from pathlib import Path

import psutil
import pytest

from fedmrn_app.environment import RUN_FOLDER
from tests.reference import reference_run
from tests.runtime.command import FEDMRN, column, environments, finish, start, wait_for_rounds

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


def processes(folder: Path, name: str = "") -> list[psutil.Process]:
    """Return the processes of a run besides the command."""
    return [each for each in environments(RUN_FOLDER, str(folder)) if any(name in word for word in each.cmdline())]


@pytest.mark.parametrize("watched", [True, False], ids=["watchdog alive", "watchdog killed"])
def test_killed_processes_come_back_and_a_killed_command_resumes(watched: bool, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = words(folder, "rounds=30", "restarts=1")
    run = start(command, tmp_path)
    wait_for_rounds(folder, 2, run)
    if watched:
        (server,) = processes(folder, "flwr-simulation")
        server.kill()
        wait_for_rounds(folder, len(column(folder)) + 2, run)
    (home,) = {environment["FLWR_HOME"] for environment in environments(RUN_FOLDER, str(folder)).values()}
    (watchdog,) = (each for each in psutil.Process(run.pid).children() if home in each.cmdline())
    if not watched:
        watchdog.kill()
    run.kill()
    output, _ = run.communicate()
    assert not watched or ("the run's processes died" in output and "starting again after round" in output)
    if watched:
        watchdog.wait(30)
        assert processes(folder) == []
        assert not Path(home).exists()
        refused = finish(command, tmp_path)
        assert refused.returncode == 1
        assert "holds a run already" in refused.stderr
    else:
        assert processes(folder, "flower-superlink")
    resumed = finish((*command, "resume=true"), tmp_path)
    assert resumed.returncode == 0
    assert column(folder) == list(range(1, 31))
    assert not Path(home).exists()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["weights_sha256"] == reference_run((*SMALL, "rounds=30"))
    assert processes(folder) == []
    again = finish((*command, "resume=true"), tmp_path)
    assert again.returncode == 0
    assert "has its 30 rounds already" in again.stdout


def test_process_that_dies_without_a_restart_ends_the_run_with_the_way_to_resume(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = start(words(folder, "rounds=500"), tmp_path)
    wait_for_rounds(folder, 1, run)
    other = finish(words(folder, "rounds=500", "resume=true"), tmp_path)
    assert other.returncode == 1
    assert "another fedmrn is at work in it" in other.stderr
    for link in processes(folder, "flower-superlink"):
        link.kill()
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 1
    (line,) = errors.splitlines()
    assert f"resume=true hydra.run.dir={folder} goes on from its last round" in line
    assert processes(folder) == []


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
