"""Sweeps: a failed run does not end the other runs, runs in parallel, and the command's last lines."""

import importlib.util
import json
from pathlib import Path

import pytest

from fedmrn_app.config.sweep import Sweep
from fedmrn_app.errors import ConfigError, DataError
from fedmrn_app.runtime.cli import print_sweep
from fedmrn_app.runtime.sweeps import forget_outcomes, read_best, read_outcomes
from tests.reference import reference_run
from tests.runtime.command import FEDMRN, finish

SMALL = ("rounds=2", "clients=4", "clients_per_round=4", "local.epochs=1")
SUMMARY = {
    "metric": "accuracy", "final_accuracy": 0.5, "best_accuracy": 0.6, "uplink_bits_per_parameter": 1.0,
    "downlink_bits_per_parameter": 2.0, "clients_failed": 0, "compress_seconds_per_client_round": 0.1,
    "train_seconds_per_client_round": 1.0, "decode_seconds_per_client_round": 0.1,
}  # fmt: skip


def outcome(folder: Path, number: int, result: object, code: str = "") -> None:
    (folder / ".outcomes").mkdir(exist_ok=True)
    text = json.dumps({"number": number, "overrides": f"seed={number}", "result": result, "code": code})
    (folder / ".outcomes" / f"{number}.json").write_text(text)


def test_failed_and_missing_runs_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, result in ((10, SUMMARY), (2, "the disk is full"), (1, SUMMARY)):
        outcome(tmp_path, number, result)
    assert [number for number, _ in read_outcomes(tmp_path)] == [1, 2, 10]
    assert not print_sweep(Sweep([["seed=0"]] * 4, tmp_path))
    printed = capsys.readouterr()
    assert "failed" in printed.out
    failed, missing, last = printed.err.splitlines()
    assert failed == "fedmrn: run 2 failed (seed=2): the disk is full"
    assert "1 runs" in missing
    assert "2 of 4 runs failed" in last
    assert f"resume=true hydra.sweep.dir={tmp_path}" in last
    forget_outcomes(tmp_path)
    assert read_outcomes(tmp_path) == []


def test_runs_of_another_sweep_are_left_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (0, 1):
        outcome(tmp_path, number, "seed was 1 and is now 2; set seed=1", "changed")
    other = "runs with other settings: name another folder with hydra.sweep.dir=FOLDER, or set these back"
    for number, code, way in (
        (2, "", f"the folders of 2 of them hold {other}; to complete the others, repeat the command with resume=true"),
        (2, "planned", f"their folders hold {other}"),
    ):
        outcome(tmp_path, number, "a reason", code)
        assert not print_sweep(Sweep([["seed=0"]] * 3, tmp_path))
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith(f"fedmrn: 3 of 3 runs failed; {way}")
        assert ("resume=true" in last) == (code == "")


@pytest.mark.slow
def test_folder_of_another_sweep_is_said(tmp_path: Path) -> None:
    command = (*FEDMRN, "--multirun", *SMALL, "rounds=1", "hydra.sweep.dir=sweep")
    assert finish((*command, "seed=0,1"), tmp_path).returncode == 0
    other = finish((*command, "seed=2,3"), tmp_path)
    assert other.returncode == 1
    assert "resume=true" not in other.stderr
    assert "run 0 failed (" in other.stderr
    assert "the run has begun with another setting: seed was 0 and is now 2; set seed=0" in other.stderr
    assert other.stderr.splitlines()[-1].startswith("fedmrn: 2 of 2 runs failed; their folders hold runs with other")


def test_best_settings_of_a_search_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome(tmp_path, 0, SUMMARY)
    assert read_best(tmp_path) is None
    (tmp_path / "optimization_results.yaml").write_text("best_params:\n  local.lr: 0.3\nbest_value: 0.875\n")
    assert print_sweep(Sweep([["local.lr=0.1"]], tmp_path, searches=True))
    assert "best: local.lr=0.3, which reached 0.8750" in capsys.readouterr().out


def test_seeds_are_checked_without_checking_every_run(tmp_path: Path) -> None:
    runs = [[f"seed={seed}", f"local.lr={lr}"] for seed in (0, 1) for lr in (0.1, 0.2)]
    Sweep(runs, tmp_path).check()
    for wrong in (["seed=-1", "local.lr=0.1"], ["seed=0", "local.lr=-1"]):
        with pytest.raises(ConfigError):
            Sweep([*runs, wrong], tmp_path).check()


def test_data_that_are_not_here_are_named_before_the_first_run(tmp_path: Path) -> None:
    runs = [["dataset=fashion_mnist", f"dataset.path={path}"] for path in (tmp_path, tmp_path / "nowhere")]
    Sweep(runs, tmp_path).check()
    Sweep(runs[:1], tmp_path).check(here=True)
    with pytest.raises(DataError, match="nowhere: no such folder or file"):
        Sweep(runs, tmp_path).check(here=True)


@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.skipif(importlib.util.find_spec("hydra_plugins") is None, reason="hydra-joblib-launcher is not installed")
def test_two_runs_at_once_beside_two_that_fail(tmp_path: Path) -> None:
    command = (
        *(*FEDMRN, "--multirun", *SMALL, "partition=natural,iid", "seed=0,1"),
        *("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=sweep", "log=tensorboard"),
    )
    sweep = tmp_path / "sweep"
    first = finish(command, tmp_path)
    assert first.returncode == 1
    assert "Traceback" not in first.stderr
    assert "run 0 failed" in first.stderr
    assert "partition=natural: " in first.stderr
    assert "2 of 4 runs failed" in first.stderr
    for number, seed in ((2, 0), (3, 1)):
        summary = json.loads((sweep / str(number) / "summary.json").read_text())
        assert summary["weights_sha256"] == reference_run((*SMALL, f"seed={seed}"))
        assert f"[{number}] round 2/2  accuracy" in first.stdout
        assert list((sweep / str(number) / "tensorboard").glob("events.out.tfevents.*"))
    before = (sweep / "2" / "summary.json").stat().st_mtime_ns
    again = finish((*command, "resume=true"), tmp_path)
    assert again.returncode == 1
    assert "2 of 4 runs failed" in again.stderr
    assert "has its 2 rounds already" in again.stdout
    assert (sweep / "2" / "summary.json").stat().st_mtime_ns == before
