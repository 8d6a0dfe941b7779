"""Kill -9 of parts of a run: what was finished stays, and the run ends as if undisturbed."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fedmrn_app.environment import RUN_FOLDER
from tests.reference import reference_run

pytestmark = [pytest.mark.flower, pytest.mark.slow]

SMALL = ("clients=4", "clients_per_round=3", "local.epochs=1", "strategy=topk", "strategy.error_feedback=true")
ROUNDS = "rounds=30"


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedmrn_app.runtime.cli", f"hydra.run.dir={folder}", *SMALL, *more]
    return subprocess.Popen(command, cwd=folder.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def processes(folder: Path) -> list[psutil.Process]:
    """Those of a run besides the command."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN_FOLDER) == str(folder):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def rounds(folder: Path) -> list[int]:
    path = folder / "rounds.csv"
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [int(row["round"]) for row in csv.DictReader(file)]


def wait_for_rounds(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 240
    while len(rounds(folder)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_killed_processes_come_back_and_a_killed_command_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = start(folder, ROUNDS, "restarts=1")
    wait_for_rounds(folder, 2)
    (server,) = (p for p in processes(folder) if any("flwr-simulation" in word for word in p.cmdline()))
    server.kill()
    done = len(rounds(folder))
    wait_for_rounds(folder, done + 2)
    run.kill()
    output, _ = run.communicate()
    assert "the run's processes died" in output
    assert f"starting again after round {done}" in output or f"starting again after round {done + 1}" in output
    homes = {process.environ()["FLWR_HOME"] for process in processes(folder)}
    assert len(homes) == 1, "the SuperLink of a killed command goes on"

    refused = start(folder, ROUNDS)
    output, _ = refused.communicate(timeout=60)
    assert refused.returncode == 1
    assert "holds a run already; resume=true continues it" in output
    resumed = start(folder, ROUNDS, "resume=true")
    output, _ = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, output
    assert rounds(folder) == list(range(1, 31))
    assert not any(Path(home).exists() for home in homes)
    assert json.loads((folder / "summary.json").read_text())["weights_sha256"] == reference_run((*SMALL, ROUNDS))
    assert processes(folder) == []

    again = start(folder, ROUNDS, "resume=true")
    output, _ = again.communicate(timeout=60)
    assert again.returncode == 0
    assert "has its 30 rounds already" in output


def test_process_that_dies_without_a_supervisor_ends_the_run_with_the_way_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = start(folder, "rounds=500")
    wait_for_rounds(folder, 1)
    other = start(folder, "rounds=500", "resume=true")
    output, _ = other.communicate(timeout=60)
    assert other.returncode == 1
    assert "another fedmrn is at work in it" in output
    links = [p for p in processes(folder) if any("flower-superlink" in word for word in p.cmdline())]
    for link in links:
        os.kill(link.pid, signal.SIGKILL)
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 1
    assert f"resume=true hydra.run.dir={folder} goes on from its last round" in output
    assert "Traceback" not in output
    assert processes(folder) == []
