"""A list's runs are those of the command: the same weights, and the same bytes in Flower's messages."""

import csv
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.paths import ROOT
from tests.reference import reference_downlink

SMALL = ("clients=3", "clients_per_round=2", "local.epochs=1", "device=cpu")


def run(path: Path) -> tuple[int, str]:
    """Train the runs of a list; return the exit status and the output."""
    words = [sys.executable, "-m", "scripts.tools.run_list", str(path), str(path.parent / "runs"), "--", *SMALL]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    return ended.returncode, ended.stdout


@pytest.mark.slow
def test_runs_of_a_list(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("# comment\none seed=1 rounds=2\n\ntwo strategy=topk client_cpus=0\n")
    status, output = run(path)
    assert status == 1
    assert "two: client_cpus=0: " in output
    folder = tmp_path / "runs" / "one"
    sha256, downlink = reference_downlink(("seed=1", "rounds=2", *SMALL), frozenset(), frozenset())
    assert json.loads((folder / "summary.json").read_text())["weights_sha256"] == sha256
    with (folder / "rounds.csv").open() as file:
        assert [float(row["downlink_bytes"]) for row in csv.DictReader(file)] == downlink
    assert "at least" not in (folder / "run.log").read_text()
    path.write_text("one seed=1 rounds=2\n")
    assert run(path) == (0, "")  # it has its rounds already


@pytest.mark.slow
def test_budget_that_replies_cannot_meet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("short uplink.bits=0.1 rounds=12\n")
    assert run(path)[0] == 0
    folder = tmp_path / "runs" / "short"
    log = (folder / "run.log").read_text()
    found = re.search(r"uplink.bits=0.1: replies of this model take at least about (\S+) bits", log)
    assert found is not None
    with (folder / "rounds.csv").open() as file:
        bits = [float(row["uplink_bits_per_parameter"]) for row in csv.DictReader(file)]
    assert sum(bits[-4:]) / 4 == pytest.approx(float(found[1]), abs=0.03)  # once the scale no longer changes


@pytest.mark.slow
def test_a_killed_command_leaves_no_process(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("endless rounds=100000\n")
    words = [sys.executable, "-m", "scripts.tools.run_list", str(path), str(tmp_path / "runs"), "--", *SMALL]
    command = psutil.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (tmp_path / "runs" / "endless" / "run.log").is_file() and time.monotonic() < deadline:
        time.sleep(0.2)
    started = command.children(recursive=True)
    assert started
    command.kill()
    command.wait()
    _, alive = psutil.wait_procs(started, timeout=20)
    assert not alive
