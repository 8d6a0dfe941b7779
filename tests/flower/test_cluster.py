"""Flower's own command: the run of `fedmrn`, on Ray alone or on a Ray cluster of two nodes, with the same weights."""

import json
import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import ray

from fedmrn_app.config.compose import load_config
from fedmrn_app.errors import ConfigError
from fedmrn_app.system.processes import command, end_processes, free_port, private_home
from tests.flower_app import flwr_run, superlink
from tests.paths import ROOT
from tests.reference import reference_run

MARK = "FEDMRN_TEST_CLUSTER"  # in the environment of all that a test starts
SMALL = ("clients=6", "clients_per_round=6", "local.epochs=1", "rounds=2")
FEDERATION = "num-supernodes=3 client-resources-num-cpus=1"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of those who use a cluster of two nodes with a core each."""
    host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    port, mark = free_port(), str(tmp_path)
    private = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), MARK: mark}
    common = ["--num-cpus=1", "--object-store-memory=100000000", "--disable-usage-stats", "--include-log-monitor=false"]
    head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir=/tmp/r{port}"]
    try:
        for words in (head, [f"--address={host}:{port}"]):
            subprocess.run(
                [command("ray"), "start", *words, *common],
                env={**os.environ, **private}, cwd=tmp_path, check=True, capture_output=True, timeout=120,
            )  # fmt: skip
        yield {**private, "RAY_ADDRESS": f"{host}:{port}"}
    finally:
        end_processes(MARK, mark)


def weights(folder: Path, variables: Mapping[str, str]) -> str:
    """Run `flwr run .` in the folder of this project, and return the hash of the final weights."""
    settings = {"overrides": json.dumps(SMALL), "run-dir": str(folder / "run")}
    with private_home() as home, superlink(home, folder / "link.log", {**os.environ, **variables}) as environment:
        printed = flwr_run(ROOT, settings, environment, "--federation-config", FEDERATION)
    summary = folder / "run" / "summary.json"
    assert summary.is_file(), printed[-3000:]
    return str(json.loads(summary.read_text())["weights_sha256"])


@pytest.mark.flower
@pytest.mark.slow
def test_flower_s_command_has_the_weights_of_a_plain_loop(tmp_path: Path) -> None:
    alone = {"RAY_ADDRESS": "local", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    assert weights(tmp_path, alone) == reference_run(SMALL)


@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.long
def test_so_has_a_cluster(cluster: dict[str, str], tmp_path: Path) -> None:
    assert weights(tmp_path, cluster) == reference_run(SMALL)


@pytest.mark.parametrize("address", ["here", "auto", "127.0.0.1:6379"])
def test_the_command_itself_uses_no_cluster(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config((f"ray.address={address}",))
    assert caught.value.key == "ray.address"
