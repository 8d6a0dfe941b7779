"""Real runs: the command as people type it, its worker processes, and what is left of them."""

import csv
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedmrn_app.config.build import resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.environment import CACHE
from fedmrn_app.errors import RunError
from fedmrn_app.flower.local_run import run_local
from fedmrn_app.learning.evaluate import evaluate
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.results.provenance import made_with, own_commit
from fedmrn_app.results.trained import load_trained
from tests.reference import reference_downlink, reference_run
from tests.runtime.command import column, environments, finish, start, wait_for_rounds

pytestmark = pytest.mark.flower

FEDMRN = str(Path(sys.executable).with_name("fedmrn"))
HOSTILE_APP = "tests.hostile_app.hostile.client_app:app"
SMALL = ("rounds=2", "clients=7", "clients_per_round=6", "local.epochs=1")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ[CACHE] = str(tmp_path_factory.mktemp("cache"))


def simulate(overrides: tuple[str, ...], folder: Path, lines: list[str]) -> None:
    """Run the hostile app."""
    values, config, _ = resolve_from_data(compose_values(overrides))
    run_local(values, config, folder, app=HOSTILE_APP, on_line=lines.append)


def summary(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return result


def left_behind() -> list[psutil.Process]:
    """Return the processes of this test session that are none of its own: fork servers and workers of commands."""
    own = {psutil.Process().pid, *(child.pid for child in psutil.Process().children(recursive=True))}
    deadline = time.monotonic() + 5
    while found := [each for each in environments(CACHE, os.environ[CACHE]) if each.pid not in own]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return found


@pytest.mark.slow
def test_command_is_deterministic_and_equals_a_plain_loop(tmp_path: Path) -> None:
    run = finish((FEDMRN, *SMALL, "hydra.run.dir=one"), tmp_path)
    assert run.returncode == 0
    assert "round 2/2  accuracy" in run.stdout
    assert "FedAvg would send" in run.stdout
    one = summary(tmp_path / "one")
    assert one["clients_failed"] == 0
    assert one["made_with"] == made_with(own_commit())
    assert one["weights_sha256"] == reference_run(SMALL)
    assert left_behind() == []
    trained = load_trained(tmp_path / "one")
    reached = evaluate(FlatModel(trained.model), trained.task, trained.task.load("test"))
    assert (trained.round, reached.headline, reached.loss) == (2, one["final_accuracy"], one["final_loss"])

    sweep = finish((FEDMRN, "--multirun", *SMALL, "seed=0,1", "hydra.sweep.dir=sweep"), tmp_path)
    assert sweep.returncode == 0
    same, other = summary(tmp_path / "sweep" / "0"), summary(tmp_path / "sweep" / "1")
    assert same["weights_sha256"] == one["weights_sha256"]
    assert other["weights_sha256"] != one["weights_sha256"]
    assert left_behind() == []


@pytest.mark.slow
def test_misbehaving_clients_are_left_out(tmp_path: Path) -> None:
    overrides = (*SMALL, "clients_per_round=7", "downlink.dtype=grid", "downlink.memory=true", "evaluate_train=true")
    lines: list[str] = []
    simulate(overrides, tmp_path, lines)
    result = summary(tmp_path)
    assert (result["rounds"], result["clients_failed"]) == (2, 10)
    for client, reason in enumerate(
        (
            "failed with: RuntimeError: sabotage",
            "checksum does not match",
            "sample count is 10000",
            "values that are not finite",
            "seed is",
        )
    ):
        rejected = [line for line in lines if f"client {client} rejected" in line and reason in line]
        assert [line.split(":")[0] for line in rejected] == ["round 1", "round 2"], lines
    weights, downlink = reference_downlink(overrides, frozenset(range(5)), frozenset({(2, 6)}))
    assert result["weights_sha256"] == weights
    with (tmp_path / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["clients_ok"], row["clients_failed"]) for row in rows] == [("2", "5")] * 2
    assert [float(row["downlink_bytes"]) for row in rows] == downlink
    assert all(abs(float(row["loss_gap"])) + abs(float(row["accuracy_gap"])) < 0.5 for row in rows)
    assert left_behind() == []


@pytest.mark.slow
def test_late_client_is_left_out(tmp_path: Path) -> None:
    overrides = (*SMALL, "rounds=1", "clients_per_round=7", "downlink.dtype=int8")
    nodes = "simulation.nodes=2"  # for seven clients: a node may host several
    lines: list[str] = []
    started = time.monotonic()
    simulate((*overrides, nodes), tmp_path / "nobody_late", lines)
    patience = f"round_timeout={3 * (time.monotonic() - started):.0f}"  # so that only the late client is late
    assert summary(tmp_path / "nobody_late")["weights_sha256"] == reference_run(overrides, left_out=frozenset(range(5)))

    simulate((*overrides, nodes, patience), tmp_path / "late", lines)
    assert "round 1: client 5 rejected: no reply within round_timeout" in lines
    result = summary(tmp_path / "late")
    assert result["weights_sha256"] == reference_run((*overrides, patience), left_out=frozenset(range(6)))
    assert left_behind() == []


@pytest.mark.slow
def test_run_without_any_usable_reply_fails_and_keeps_the_model(tmp_path: Path) -> None:
    overrides = (*SMALL, "clients=3", "clients_per_round=3")
    with pytest.raises(RunError) as caught:
        simulate(overrides, tmp_path, [])
    assert caught.value.code == "clients-fail"
    assert "sabotage" in str(caught.value)
    assert (tmp_path / "model.safetensors").is_file()
    assert not (tmp_path / "summary.json").exists()
    assert left_behind() == []


@pytest.mark.slow
def test_interrupted_run_leaves_no_process_and_can_be_resumed(tmp_path: Path) -> None:
    words = (FEDMRN, *SMALL, "hydra.run.dir=run")
    process = start((*words, "rounds=500"), tmp_path)
    wait_for_rounds(tmp_path / "run", 1, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(errors.splitlines()) == 1
    assert left_behind() == []
    rounds = f"rounds={len(column(tmp_path / 'run')) + 1}"
    assert finish((*words, rounds, "resume=true"), tmp_path).returncode == 0
    assert summary(tmp_path / "run")["weights_sha256"] == reference_run((*SMALL, rounds))


@pytest.mark.slow
def test_wrong_configuration_is_refused_before_anything_starts(tmp_path: Path) -> None:
    refused = finish((FEDMRN, "noise.alpha=0"), tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    (line,) = refused.stderr.splitlines()
    assert line.startswith("fedmrn: noise.alpha=0: ")
    assert list(tmp_path.iterdir()) == []
