"""A simulation on a Ray cluster that is there: a head and two more nodes, of which one is killed in the middle."""

import json
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray
from safetensors.numpy import load_file

from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_values, load_config
from fedmrn_app.errors import ConfigError
from fedmrn_app.federation.loop import run_rounds
from fedmrn_app.runtime.simulation import run_simulation
from fedmrn_app.system.processes import command, end_processes, free_port

MARK = "FEDMRN_TEST_CLUSTER"  # in the environment of all that a test starts
SMALL = ("clients=6", "clients_per_round=6", "local.epochs=1")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a cluster of three nodes with a core each."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # as whoever runs a cluster has it in the environment
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    address, mark = f"{host}:{free_port()}", str(tmp_path)
    environment = {**os.environ, MARK: mark, "PYTHONPATH": ""}  # the package travels to the nodes
    common = ["--num-cpus=1", "--object-store-memory=100000000", "--disable-usage-stats", "--include-log-monitor=false"]
    try:
        for number in range(3):
            folder = tmp_path / f"node{number}"
            folder.mkdir()
            head = ["--head", f"--port={address.split(':')[1]}", "--include-dashboard=false"]
            words = [*head, f"--temp-dir=/tmp/r{address.split(':')[1]}"] if number == 0 else [f"--address={address}"]
            subprocess.run(
                [command("ray"), "start", *words, *common],
                env=environment, cwd=folder, check=True, capture_output=True, timeout=120,
            )  # fmt: skip
        yield address
    finally:
        end_processes(MARK, mark)


def raylets(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.name() == "raylet" and process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue
    return sorted(found, key=lambda process: process.create_time())


@pytest.mark.flower
@pytest.mark.long
def test_weights_are_those_of_a_private_run_and_a_killed_node_costs_its_replies_only(
    cluster: str, tmp_path: Path
) -> None:
    def kill() -> None:
        path = tmp_path / "run" / "rounds.csv"
        while not path.is_file() or len(path.read_text().splitlines()) < 3:
            time.sleep(0.05)
        time.sleep(0.3)
        victim = raylets(str(tmp_path))[-1]
        for process in [*victim.children(recursive=True), victim]:
            process.send_signal(signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    overrides = (*SMALL, "local.epochs=20", "round_timeout=60", f"ray.address={cluster}")
    values, config, _ = resolve_from_data(compose_values((*overrides, "rounds=3")))
    run_simulation(values, config, tmp_path / "run")
    killer.join(10)
    assert len(raylets(str(tmp_path))) == 2  # the cluster stays
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rounds"] == 3
    assert summary["clients_failed"] <= 1  # what its process was at work on; for that there is no room elsewhere
    _, config, _ = resolve_from_data(compose_values((*overrides, "rounds=2")))
    worker = build_worker(config)
    state, (model, _) = run_rounds(worker), worker.model()
    model.load(state.vector, state.dense)
    kept = load_file(tmp_path / "run" / "previous.safetensors")  # of round 2, before the kill
    for name, tensor in model.module.state_dict().items():
        np.testing.assert_array_equal(kept[name], tensor.numpy())


def test_address_where_no_cluster_is_is_refused_before_anything_starts(tmp_path: Path) -> None:
    values, config, _ = resolve_from_data(compose_values((*SMALL, f"ray.address=127.0.0.1:{free_port()}")))
    with pytest.raises(ConfigError, match=r"^ray\.address=127\.0\.0\.1:\d+: no Ray cluster answers there \(Connection"):
        run_simulation(values, config, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("ray.address=here",), "ray.address=here: must be auto, host:port or null"),
        (
            ("ray.address=auto", "strategy=topk", "strategy.error_feedback=true"),
            "ray.address=auto: a client must find what it left",
        ),
    ],
)
def test_what_cannot_work_is_refused(overrides: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides)
    assert str(caught.value).startswith(said)
