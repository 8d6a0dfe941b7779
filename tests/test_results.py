"""The run's folder: rows as they come, a model that loads, and going on where a run stopped."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from safetensors.torch import load_file

from fedmrn_app.errors import RunError
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.models import build_model
from fedmrn_app.noise import Float32Array
from fedmrn_app.results import Round, RunFolder
from tests.test_fedmrn import SHAPE

VALUES: dict[str, Any] = {"rounds": 3, "seed": 0, "local": {"lr": 0.1}}


def row(number: int, accuracy: float) -> Round:
    return Round(number, accuracy, 0.25, 0.5, 0.6, 0.1, -0.01, 100.0, 1.25, 400.0, 9, 1, 2.0, 0.02, 0.001, 3.0)


def model(seed: int = 0) -> FlatModel:
    return FlatModel(build_model("digits", SHAPE, seed))


def vector(seed: int = 0) -> Float32Array:
    return np.full(7, seed, np.float32)


def rows_on_disk(folder: Path) -> list[dict[str, str]]:
    with (folder / "rounds.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_and_model_are_on_disk_when_a_round_ends(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.start(VALUES, model(), vector(), resume=False) == 0
    assert rows_on_disk(folder.path) == []
    assert (folder.path / "model.safetensors").is_file()
    for number, accuracy in ((1, 0.5), (2, 0.75)):
        folder.add_round(row(number, accuracy), model(number), vector(number))
        last = rows_on_disk(folder.path)[-1]
        assert (last["round"], float(last["accuracy"])) == (str(number), accuracy)
        stored = load_file(folder.path / "model.safetensors")
        assert all(stored[name].equal(tensor) for name, tensor in model(number).module.state_dict().items())
    assert OmegaConf.load(folder.path / "config.yaml") == VALUES


def test_summary_reports_last_and_best(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.start(VALUES, model(), vector(), resume=False)
    for number, accuracy in enumerate((0.5, 0.9, 0.8), 1):
        folder.add_round(row(number, accuracy), model(), vector())
    summary = folder.summarise({"parameters": 10})
    folder.finish(summary)
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    assert (summary["final_accuracy"], summary["best_accuracy"], summary["best_round"]) == (0.8, 0.9, 2)
    assert (summary["rounds"], summary["clients_failed"], summary["seconds"], summary["parameters"]) == (3, 3, 9.0, 10)
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert not list(tmp_path.glob("*.partial"))


def test_resume_goes_on_after_the_last_saved_round(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.start(VALUES, model(), vector(), resume=False)
    folder.add_round(row(1, 0.5), model(1), vector(1))
    folder.add_round(row(2, 0.6), model(2), vector(2))
    folder.save_model(model(1), vector(1), 1)  # as if the process had died between row 2 and its model
    again, loaded, state = RunFolder(tmp_path), model(9), vector(9)
    assert again.start({**VALUES, "rounds": 5}, loaded, state, resume=True) == 1
    assert np.array_equal(state, vector(1))
    assert all(np.array_equal(a, b) for a, b in zip(loaded.state(), model(1).state(), strict=True))
    assert [r["round"] for r in rows_on_disk(tmp_path)] == ["1"]
    assert again.rounds == [row(1, 0.5)]


def test_resume_refuses_another_configuration_or_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        RunFolder(tmp_path).start(VALUES, model(), vector(), resume=True)
    RunFolder(tmp_path).start(VALUES, model(), vector(), resume=False)
    with pytest.raises(RunError, match="seed was 0 and is now 1"):
        RunFolder(tmp_path).start({**VALUES, "seed": 1}, model(), vector(), resume=True)
