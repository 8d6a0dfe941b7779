"""Real SuperNodes that are killed in the middle of a round, and come back."""

import csv
import json
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.supernodes import Federation

pytestmark = [pytest.mark.flower, pytest.mark.slow]


def rows(folder: Path) -> list[dict[str, str]]:
    path = folder / "rounds.csv"
    return list(csv.DictReader(path.open(newline=""))) if path.is_file() else []


def wait_for(folder: Path, count: int, timeout: float) -> float:
    """Wait for the end of a round, and return when it was."""
    deadline = time.monotonic() + timeout
    while len(rows(folder)) < count:
        assert time.monotonic() < deadline, (folder / "run.log").read_text()
        time.sleep(0.1)
    return time.monotonic()


def kill(node: subprocess.Popen[bytes]) -> None:
    """End a node and all that it has started, as a device loses power."""
    for process in [*psutil.Process(node.pid).children(recursive=True), node]:
        process.send_signal(signal.SIGKILL)


@pytest.mark.long
def test_node_that_dies_leaves_the_round_at_once_and_is_used_again(federation: Federation) -> None:
    folder = federation.folder / "run"
    nodes = [federation.node(number, "num-partitions=3") for number in range(3)]
    run = federation.begin("clients=3 clients_per_round=3 rounds=5 local.epochs=30 uplink.bits=null")
    begun = wait_for(folder, 1, 240)
    time.sleep(2)  # in the middle of its training
    kill(nodes[2])
    killed = time.monotonic()
    closed = wait_for(folder, 2, 120)
    federation.node(2, "num-partitions=3")
    third = wait_for(folder, 3, 120)
    run.wait(300)
    log = (folder / "run.log").read_text()
    print(
        f"killed {killed - begun:.1f} s into round 2, which closed {closed - killed:.1f} s later; round 3 without it: "
    )
    print(f"{third - closed:.1f} s")
    print(log)
    used = [(int(row["clients_ok"]), int(row["clients_failed"])) for row in rows(folder)]
    assert used[:3] == [(3, 0), (2, 1), (2, 0)]
    assert "round 2: client 2 rejected: its node " in log
    assert "has died: no heartbeat" in log
    assert used[-1] == (3, 0)
    assert "has connected: client 2 will take part from now on" in log
    assert closed - killed < 30 + max(third - closed, 15)
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 5
