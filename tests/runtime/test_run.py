"""Real Flower runs: real processes, real Ray, the command as people type it."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedmrn_app.config.build import resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.errors import RunError
from fedmrn_app.learning.evaluate import evaluate
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.results.provenance import made_with
from fedmrn_app.results.trained import load_trained
from fedmrn_app.runtime.simulation import run_simulation
from tests.paths import ROOT
from tests.reference import reference_downlink, reference_run

pytestmark = pytest.mark.flower

FEDMRN = str(Path(sys.executable).with_name("fedmrn"))
HOSTILE_APP = ROOT / "tests" / "hostile_app"
STARTED = time.time()
SMALL = ("rounds=2", "clients=7", "clients_per_round=6", "local.epochs=1")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["FEDMRN_CACHE"] = str(tmp_path_factory.mktemp("cache"))


def simulate(overrides: tuple[str, ...], folder: Path, lines: list[str]) -> None:
    """Run the hostile app."""
    values, config, _ = resolve_from_data(compose_values(overrides))
    run_simulation(values, config, folder, app=HOSTILE_APP, on_line=lines.append)


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

    # where these tests run in the background Ctrl-C is ignored, and so it would be by what they start
    def hear_interrupts() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return subprocess.Popen([FEDMRN, *arguments], cwd=cwd, preexec_fn=hear_interrupts, **pipes)


def summary(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return result


def wait_for_rounds(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Return as soon as rounds.csv has `count` rows; the command must still be running then."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        alive = process.poll() is None
        if (folder / "rounds.csv").is_file() and len((folder / "rounds.csv").read_text().splitlines()) > count:
            assert alive
            return
        assert alive, process.communicate()
        time.sleep(0.1)
    raise AssertionError(f"no round {count} within 240 s")


def flower_processes() -> list[psutil.Process]:
    """All processes of private SuperLinks of this test session: SuperLink, simulation, Ray, actors."""
    deadline = time.monotonic() + 60
    while True:
        found = _flower_processes()
        # a test beside this one may just have killed its run, and it ends what is left; what this one leaves stays
        others = [process for process in found if process.is_running() and not _is_ray_orphan(process)]
        if others or not found or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def _flower_processes() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            environ = process.environ()
        except psutil.Error:
            continue
        ours = "fedmrn-" in environ.get("FLWR_HOME", "") and environ.get("FEDMRN_CACHE") == os.environ["FEDMRN_CACHE"]
        if ours or _is_ray_orphan(process):
            found.append(process)
    return found


def _is_ray_orphan(process: psutil.Process) -> bool:
    """Ray's agents write their names over their environment."""
    try:
        orphan = process.ppid() == 1 and process.create_time() > STARTED
        return orphan and str(process.name()).startswith("ray::")
    except psutil.Error:
        return False


@pytest.mark.slow
def test_command_is_deterministic_and_equals_a_plain_loop(tmp_path: Path) -> None:
    process = start(*SMALL, "hydra.run.dir=one", cwd=tmp_path)
    wait_for_rounds(tmp_path / "one", 1, process)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert "round 2/2  accuracy" in output
    assert "FedAvg would send" in output
    one = summary(tmp_path / "one")
    assert one["clients_failed"] == 0
    assert one["made_with"] == made_with()
    assert one["weights_sha256"] == reference_run(SMALL)
    assert flower_processes() == []
    trained = load_trained(tmp_path / "one")
    reached = evaluate(FlatModel(trained.model), trained.task, trained.task.load("test"))
    assert (trained.round, reached.headline, reached.loss) == (2, one["final_accuracy"], one["final_loss"])

    sweep = start("--multirun", *SMALL, "seed=0,1", "hydra.sweep.dir=sweep", cwd=tmp_path)
    output, errors = sweep.communicate(timeout=300)
    assert sweep.returncode == 0, errors
    same, other = summary(tmp_path / "sweep" / "0"), summary(tmp_path / "sweep" / "1")
    assert same["weights_sha256"] == one["weights_sha256"]
    assert other["weights_sha256"] != one["weights_sha256"]
    assert flower_processes() == []


@pytest.mark.slow
def test_misbehaving_clients_are_left_out(tmp_path: Path) -> None:
    overrides = (*SMALL, "clients_per_round=7", "downlink.dtype=grid", "downlink.memory=true", "evaluate_train=true")
    lines: list[str] = []
    simulate(overrides, tmp_path, lines)
    result = summary(tmp_path)
    assert (result["rounds"], result["clients_failed"]) == (2, 10)
    for client, reason in enumerate(
        (
            "failed with: sabotage",
            "checksum does not match",
            "sample count is 10000",
            "values that are not finite",
            "seed is",
        )
    ):
        told = [line for line in lines if f"client {client} rejected" in line and reason in line]
        assert [line.split(":")[0] for line in told] == ["round 1", "round 2"], lines
    weights, downlink = reference_downlink(overrides, frozenset(range(5)), frozenset({(2, 6)}))
    assert result["weights_sha256"] == weights
    with (tmp_path / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["clients_ok"], row["clients_failed"]) for row in rows] == [("2", "5")] * 2
    assert [float(row["downlink_bytes"]) for row in rows] == downlink
    assert all(abs(float(row["loss_gap"])) + abs(float(row["accuracy_gap"])) < 0.5 for row in rows)
    assert flower_processes() == []


@pytest.mark.slow
def test_late_client_is_left_out_and_nobody_waits_for_it_in_the_end(tmp_path: Path) -> None:
    overrides = (*SMALL, "rounds=1", "clients_per_round=7", "round_timeout=40", "downlink.dtype=int8")
    lines: list[str] = []
    start = time.monotonic()
    simulate((*overrides, "simulation.nodes=2"), tmp_path, lines)  # for seven clients: a node may host several
    assert time.monotonic() - start < 240
    assert "round 1: client 5 rejected: no reply within round_timeout" in lines
    assert summary(tmp_path)["weights_sha256"] == reference_run(overrides, left_out=frozenset(range(6)))
    assert flower_processes() == []


def test_run_without_any_usable_reply_fails_and_keeps_the_model(tmp_path: Path) -> None:
    overrides = (*SMALL, "clients=3", "clients_per_round=3")
    with pytest.raises(RunError, match=r"round 1: no usable reply \(client 0: failed with: sabotage; client 1: "):
        simulate(overrides, tmp_path, [])
    assert (tmp_path / "model.safetensors").is_file()
    assert not (tmp_path / "summary.json").exists()
    assert flower_processes() == []


@pytest.mark.slow
def test_interrupted_run_leaves_no_process_and_can_go_on(tmp_path: Path) -> None:
    process = start(*SMALL, "rounds=500", "hydra.run.dir=run", cwd=tmp_path)
    wait_for_rounds(tmp_path / "run", 1, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert flower_processes() == []
    done = len((tmp_path / "run" / "rounds.csv").read_text().splitlines()) - 1
    rounds = f"rounds={done + 1}"
    resumed = start(*SMALL, rounds, "resume=true", "hydra.run.dir=run", cwd=tmp_path)
    _, errors = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, errors
    assert summary(tmp_path / "run")["weights_sha256"] == reference_run((*SMALL, rounds))


def test_wrong_configuration_is_refused_before_anything_starts(tmp_path: Path) -> None:
    process = start("noise.alpha=0", cwd=tmp_path)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    (line,) = errors.splitlines()
    assert output == ""
    assert line.startswith("fedmrn: noise.alpha=0: must be at least 1e-30 and at most 1e+30")
    assert list(tmp_path.iterdir()) == []
