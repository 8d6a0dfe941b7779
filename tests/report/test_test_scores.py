"""`fedmrn-report --test`: the runs' models on the test split, whatever the runs were evaluated on."""

import sys
from pathlib import Path

import pytest

from fedmrn_app.learning.evaluate import Evaluation, evaluate, measured_norms
from fedmrn_app.report.cli import main
from fedmrn_app.results.run_folder import RunFolder
from fedmrn_app.tasks.validation import load_training
from tests.run_folder import begun, row


def leave_run(path: Path, overrides: tuple[str, ...]) -> Evaluation:
    """A run's folder as if after a round, and what its model reaches on the test split."""
    run = begun(*overrides, "rounds=1")
    config, task, model = run.config, run.task, run.model
    folder = RunFolder(path)
    folder.start(run.values, model, run.state, resume=False)
    folder.add_round(row(1, 0.5), model, run.state)
    strategy = run.values["strategy"]["name"]
    facts = {"strategy": strategy, "dataset": "digits", "partition": "iid", "evaluated_on": "validation"}
    folder.finish(folder.summarise(facts))
    by = load_training(task, config.validation, config.seed) if config.static_norm == "train" else None
    with measured_norms(model, task, by):
        return evaluate(model, task, task.load("test"))


@pytest.mark.parametrize(
    "overrides",
    [
        ("strategy=fedavg", "validation=0.2", "seed=3"),
        ("strategy=submodel", "model=digits", "model.norm=static", "static_norm=train", "validation=0.2", "seed=3"),
    ],
)
def test_models_are_evaluated_on_the_test_split(
    tmp_path: Path, overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reached = leave_run(tmp_path / "run", overrides)
    monkeypatch.setattr(sys, "argv", ["fedmrn-report", "--test", str(tmp_path)])
    assert main() == 0
    head, _, cells = capsys.readouterr().out.splitlines()
    assert head == "| run | data | seeds | rounds | final accuracy, % | test accuracy, % | test loss |"
    name = overrides[0].removeprefix("strategy=")
    said = f"| {name} | digits, iid, validation | 1 | 1 | 50.00 | {100 * reached.headline:.2f} | {reached.loss:.4f} |"
    assert cells == said


def test_run_that_has_left_no_model_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_run(tmp_path / "run", ())
    (tmp_path / "run" / "model.safetensors").unlink()
    monkeypatch.setattr(sys, "argv", ["fedmrn-report", "--test", str(tmp_path)])
    (tmp_path / "run" / "previous.safetensors").unlink()
    assert main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("model.safetensors: is not there")
