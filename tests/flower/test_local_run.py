"""Runs on this machine: how many workers they have, which stay from run to run, and a debugger in a client."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from fedmrn_app.config.build import resolve_from_data
from fedmrn_app.config.compose import compose_values, load_config
from fedmrn_app.data.samples import Samples
from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.federation.protocol import GlobalState
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.flower import local_run, serve, shared_workers
from fedmrn_app.flower.local_run import gpu_places, run_local, worker_count
from fedmrn_app.results.checkpoint import read_state
from fedmrn_app.results.progress import Progress
from tests.own_rows import own, write_npz
from tests.paths import ROOT
from tests.reference import reference_run
from tests.run_folder import rows_on_disk

SMALL = ("rounds=2", "clients=3", "clients_per_round=3", "local.epochs=1")
NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, classes))

    def forward(self, x):
        if self.training and len(x) > 2:  # the model is tried on two rows before the run
            breakpoint()
        return super().forward(x)
"""
DEBUGGED = """
import sys
from pathlib import Path
from fedmrn_app.config.build import resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.flower.local_run import run_local
words = ("clients=1", "clients_per_round=1", "rounds=1", "local.steps=1", "simulation.processes=0")
values, config, _ = resolve_from_data(compose_values((*words, "model=own", "model._target_=debugged.Net")))
run_local(values, config, Path("run"))
"""


@pytest.mark.parametrize(
    ("overrides", "at_once", "expected"),
    [
        ((), 1, 8),
        (("client_cpus=2",), 1, 4),
        (("client_cpus=3",), 1, 2),
        ((), 4, 2),
        ((), 100, 1),
        (("clients_per_round=3",), 1, 3),
        (("simulation.processes=20",), 1, 20),
        (("simulation.processes=0",), 1, 0),
    ],
)
def test_number_of_workers(
    overrides: tuple[str, ...], at_once: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_run, "cores", lambda: 8)
    assert worker_count(load_config(overrides), at_once) == expected


def test_a_client_needs_no_more_cores_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_run, "cores", lambda: 2)
    with pytest.raises(ConfigError) as caught:
        worker_count(load_config(("client_cpus=3",)))
    assert (caught.value.key, caught.value.value) == ("client_cpus", 3)


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.25, ["4", "5"] * 4),
        (1 / 3, ["4", "5"] * 3),
        (0.4, ["4", "5"] * 2),
        (1.0, ["4", "5"]),
        (2.0, ["4,5"]),
    ],
)
def test_gpus_of_workers(share: float, expected: list[str]) -> None:
    assert gpu_places(share, ["4", "5"]) == expected


@pytest.mark.slow
def test_weights_do_not_depend_on_the_workers_which_stay(tmp_path: Path) -> None:
    pids: list[set[int]] = []
    for processes in (0, 1, 2, 2, 4):
        folder = tmp_path / f"{len(pids)}"
        values, config, _ = resolve_from_data(compose_values((*SMALL, f"simulation.processes={processes}")))
        run_local(values, config, folder)
        assert json.loads((folder / "summary.json").read_text())["weights_sha256"] == reference_run(SMALL)
        assert not list(folder.glob("clients/*/versions"))
        pids.append(set() if shared_workers._workers is None else set(shared_workers._workers.pids.values()))
    assert pids[2] == pids[3]
    assert all(psutil.pid_exists(pid) for pid in pids[4])


def test_an_unexpected_error_is_one_line_and_its_traceback_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(local_run, "serve", fail)
    values, config, _ = resolve_from_data(compose_values((*SMALL, "simulation.processes=0")))
    with pytest.raises(RunError) as caught:
        run_local(values, config, tmp_path)
    assert "ZeroDivisionError: a bug" in str(caught.value)
    assert "in fail" in (tmp_path / "flower.log").read_text()


@pytest.mark.parametrize(("rate", "learned"), [("1e-6", False), ("0.3", True)])
def test_a_model_that_is_no_better_than_a_constant_answer_has_a_line(rate: str, learned: bool, tmp_path: Path) -> None:
    """Of rows of which four of five have one class, an accuracy of 0.8 tells nothing."""
    labels = (np.arange(200) % 5 == 0).astype(np.int64)
    x = np.random.default_rng(0).normal(size=(200, 4)) + 4 * labels[:, None]
    rows = f"dataset.path={write_npz(tmp_path / 'rows.npz', x=x, y=labels)}"
    words = ("dataset=own", rows, "model=mlp", "model.hidden=[]", "strategy=fedavg", f"local.lr={rate}", *SMALL)
    values, config, _ = resolve_from_data(compose_values((*words, "simulation.processes=0")))
    run_local(values, config, tmp_path / "run")
    line = (
        "the model is no better than the same answer for all rows (accuracy 0.8000); try another local.lr, more rounds"
    )
    log = (tmp_path / "run" / "run.log").read_text()
    assert (line in log, "strategy=fedavg," in log) == (not learned, False)


def test_test_rows_of_one_class_are_named_as_the_cause() -> None:
    task = own(None, form="table", features=1, classes=2)
    test = Samples(np.zeros((5, 1)), np.zeros(5, np.int64))
    run: Any = SimpleNamespace(progress=SimpleNamespace(task=task, splits=SimpleNamespace(test=test)))
    line = serve._nothing_learned(run, 1.0)
    assert line == "all test rows are of one class, so that this accuracy tells nothing; add rows of the others"


@pytest.mark.slow
def test_a_breakpoint_in_a_client_stops_there(tmp_path: Path) -> None:
    (tmp_path / "debugged.py").write_text(NET)
    done = subprocess.run(
        [sys.executable, "-c", DEBUGGED], cwd=tmp_path, input="p x.shape\nimport os\nq\n", text=True,
        capture_output=True, timeout=300, check=False, env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": "/usr/bin"},
    )  # fmt: skip
    assert "(Pdb)" in done.stdout
    assert "torch.Size([16, 1, 8, 8])" in done.stdout


@pytest.mark.parametrize(("killed", "saved"), [(False, 3), (True, 2)])
def test_a_run_that_ends_between_two_saved_states_resumes_with_the_same_weights(
    killed: bool, saved: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("rounds=5", "clients=2", "clients_per_round=2", "+local.steps=1", "save_every=2", "downlink.memory=false")
    values, config, _ = resolve_from_data(compose_values((*words, "simulation.processes=0")))
    plain = Progress.end_round

    def end_round(progress: Progress, state: GlobalState, done: RoundReport, *rest: Any, **options: Any) -> Any:
        if done.number == 4:
            raise RunError("the sensor is broken", code="clients-fail")
        return plain(progress, state, done, *rest, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Progress, "end_round", end_round)
        if killed:
            patched.setattr(Progress, "save", lambda progress: None)
        with pytest.raises(RunError):
            run_local(values, config, tmp_path)
    assert read_state(tmp_path)[0].round == saved
    assert [entry["round"] for entry in rows_on_disk(tmp_path)] == ["1", "2", "3"]
    run_local({**values, "resume": True}, replace(config, resume=True), tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["weights_sha256"] == reference_run(words)
    assert [entry["round"] for entry in rows_on_disk(tmp_path)] == ["1", "2", "3", "4", "5"]
