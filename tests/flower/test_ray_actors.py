"""The processes in which a simulation trains: strangers cannot get at them, and one that dies comes back."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from fedmrn_app.config.build import resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.runtime.simulation import run_simulation
from tests.reference import reference_run

pytestmark = [pytest.mark.flower, pytest.mark.slow]

CONNECT = """
import sys
from ray._raylet import GcsClient
try:
    GcsClient(address=sys.argv[1]).internal_kv_keys(b"", b"fun", timeout=5)
except BaseException as error:
    print(type(error).__name__)
else:
    print("connected")
"""


class Watcher(threading.Thread):
    """Waits for a round of a run, tries to connect to its Ray without the token, and kills an actor that trains."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.rounds = folder / "rounds.csv"
        self.connections: list[str] = []  # without the token, and with it
        self.addresses: set[str] = set()
        self.killed = False

    def run(self) -> None:
        self._wait_for(2)
        processes = psutil.Process().children(recursive=True)
        listening = [one for process in processes for one in process.net_connections() if one.status == "LISTEN"]
        self.addresses = {one.laddr.ip.removeprefix("::ffff:") for one in listening}
        (ray,) = [process for process in processes if process.name() == "gcs_server"]
        (port,) = {one.laddr.port for one in ray.net_connections() if one.status == "LISTEN"}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        token = {name: ray.environ()[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
        for more in ({}, token):
            connect = [sys.executable, "-c", CONNECT, f"127.0.0.1:{port}"]
            said = subprocess.run(
                connect, env=environment | more, stdout=subprocess.PIPE, text=True, timeout=120, check=False
            )
            self.connections.append(said.stdout.strip())
        while not self.killed:
            actors = [process for process in processes if "LastingActor.run" in " ".join(process.cmdline())]
            if actors:
                actors[0].kill()
                self.killed = True

    def _wait_for(self, rounds: int) -> None:
        while not self.rounds.is_file() or len(self.rounds.read_text().splitlines()) <= rounds:
            time.sleep(0.1)


def test_strangers_stay_out_and_a_killed_actor_comes_back(tmp_path: Path) -> None:
    # in the network of the machine, where strangers can try
    overrides = ("rounds=30", "clients=6", "clients_per_round=6", "local.epochs=2", "simulation.own_network=false")
    values, config, _ = resolve_from_data(compose_values(overrides))
    watcher = Watcher(tmp_path)
    watcher.start()
    run_simulation(values, config, tmp_path)
    assert watcher.killed
    assert watcher.addresses == {"127.0.0.1"}
    assert watcher.connections == ["AuthenticationError", "connected"]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["rounds"] == 30
    assert summary["clients_failed"] <= 1  # the reply that it was working on
    if summary["clients_failed"] == 0:
        assert summary["weights_sha256"] == reference_run(overrides)
