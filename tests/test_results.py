"""The run's folder: rows as they come, a model that loads, and going on where a run stopped."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from safetensors.torch import load_file

from fedmrn_app.errors import RunError
from fedmrn_app.federation.agreement import GlobalState
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.models.build import build_model
from fedmrn_app.learning.models.cnn import digits
from fedmrn_app.results.folder import VECTOR, RunFolder
from fedmrn_app.results.progress import progress_line
from fedmrn_app.results.rows import Round, columns, from_row, to_row
from fedmrn_app.tasks.classification import Classification

VALUES: dict[str, Any] = {"rounds": 3, "seed": 0, "local": {"lr": 0.1}}
IMAGES = Classification(channels=1, height=8, width=8, classes=10, mean=(0.5,), std=(0.5,))


def row(number: int, accuracy: float) -> Round:
    metrics = {"accuracy": accuracy}
    return Round(
        number, metrics, 0.25, 0.5, 0.6, 0.1, -0.01, 100.0, 1.25, 400.0, 5.0, 6.25, 9, 1, 2.0, 0.02, 0.001, 3.0, 0.7
    )


def model(seed: int = 0) -> FlatModel:
    return FlatModel(build_model(digits, {}, IMAGES, seed))


def state(seed: int = 0) -> GlobalState:
    """A vector that is not the model's weights, and what steers the noise."""
    return GlobalState(np.full(7, seed, np.float32), np.empty(0, np.float32), np.full(3, seed + 1, np.float32))


def rows_on_disk(folder: Path) -> list[dict[str, str]]:
    with (folder / "rounds.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_and_model_are_on_disk_when_a_round_ends(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.start(VALUES, model(), state(), resume=False) == 0
    assert rows_on_disk(folder.path) == []
    assert (folder.path / "model.safetensors").is_file()
    for number, accuracy in ((1, 0.5), (2, 0.75)):
        folder.add_round(row(number, accuracy), model(number), state(number))
        last = rows_on_disk(folder.path)[-1]
        assert (last["round"], float(last["accuracy"])) == (str(number), accuracy)
        stored = load_file(folder.path / "model.safetensors")
        assert all(stored[name].equal(tensor) for name, tensor in model(number).module.state_dict().items())
    assert OmegaConf.load(folder.path / "config.yaml") == VALUES


def test_vector_is_stored_where_it_is_not_the_weights(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.start(VALUES, model(), GlobalState(*model().state()), resume=False)
    assert VECTOR not in load_file(tmp_path / "model.safetensors")
    folder.add_round(row(1, 0.5), model(), state(3))
    assert np.array_equal(load_file(tmp_path / "model.safetensors")[VECTOR].numpy(), state(3).vector)


def test_summary_reports_last_and_best(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.start(VALUES, model(), state(), resume=False)
    for number, accuracy in enumerate((0.5, 0.9, 0.8), 1):
        folder.add_round(row(number, accuracy), model(), state())
    summary = folder.summarise({"parameters": 10})
    folder.finish(summary)
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    assert (summary["final_accuracy"], summary["best_accuracy"], summary["best_round"]) == (0.8, 0.9, 2)
    assert (summary["rounds"], summary["clients_failed"], summary["seconds"], summary["parameters"]) == (3, 3, 9.0, 10)
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert not list(tmp_path.glob("*.partial"))


def test_best_round_is_that_of_the_headline(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, ["mean_iou", "pixel_accuracy"])
    folder.start(VALUES, model(), state(), resume=False)
    for number, (iou, pixels) in enumerate([(0.3, 0.9), (0.4, 0.7)], 1):
        entry = replace(row(number, 0.0), metrics={"mean_iou": iou, "pixel_accuracy": pixels})
        folder.add_round(entry, model(), state())
    summary = folder.summarise({})
    assert (summary["metric"], summary["best_round"]) == ("mean_iou", 2)
    assert (summary["final_mean_iou"], summary["best_mean_iou"]) == (0.4, 0.4)
    assert (summary["final_pixel_accuracy"], summary["best_pixel_accuracy"]) == (0.7, 0.7)
    assert summary["final_accuracy"] is None
    assert rows_on_disk(tmp_path)[0]["pixel_accuracy"] == "0.9"


@pytest.mark.parametrize("metrics", [("accuracy",), ("mean_iou", "pixel_accuracy")])
def test_rows_come_back_as_they_were(metrics: tuple[str, ...]) -> None:
    entry = replace(row(3, 0.0), metrics={name: 0.1 * n for n, name in enumerate(metrics, 1)}, loss_gap=-1e-30)
    texts = {name: str(value) for name, value in to_row(entry).items()}
    assert list(texts) != []
    assert sorted(texts) == sorted(columns(metrics))
    assert from_row(texts, metrics) == entry
    assert columns(metrics)[:3] == ["round", metrics[0], f"sampled_{metrics[0]}"]
    assert f"{metrics[0]}_gap" in columns(metrics)
    unknown = from_row({**texts, f"sampled_{metrics[0]}": "nan"}, metrics)
    assert math.isnan(unknown.sampled)


def test_line_of_a_round() -> None:
    line = progress_line(row(3, 0.5), 20, 125.0)
    assert line == (
        "round  3/20  accuracy 0.5000 (sampled 0.2500)  loss 0.5000  "
        "uplink 100 B per client, 1.250 bits per parameter, downlink 5.00, total 6.25  "
        "epsilon 0.700  3.0 s, 2:05 left  1 rejected"
    )
    plain = replace(row(20, 0.5), sampled=math.nan, clients_failed=0, uplink_bytes=12345.0, epsilon=math.nan)
    quiet = progress_line(plain, 20, 0)
    assert quiet.startswith("round 20/20  accuracy 0.5000  loss 0.5000  uplink 12,345 B per client, 1.250 bits per p")
    assert quiet.endswith("3.0 s, 0:00 left")


def test_resume_goes_on_after_the_last_saved_round(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.start(VALUES, model(), state(), resume=False)
    folder.add_round(row(1, 0.5), model(1), state(1))
    folder.add_round(row(2, 0.6), model(2), state(2))
    folder.save_model(model(1), state(1), 1)  # as if the process had died between row 2 and its model
    again, loaded, kept = RunFolder(tmp_path), model(9), state(9)
    assert again.start({**VALUES, "rounds": 5}, loaded, kept, resume=True) == 1
    assert np.array_equal(kept.vector, state(1).vector)
    assert kept.steering is not None
    assert kept.steering.tolist() == [2, 2, 2]
    assert all(np.array_equal(a, b) for a, b in zip(loaded.state(), model(1).state(), strict=True))
    assert [r["round"] for r in rows_on_disk(tmp_path)] == ["1"]
    assert again.rounds == [row(1, 0.5)]


def test_new_start_forgets_how_the_last_one_ended(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.start(VALUES, model(), state(), resume=False)
    folder.fail("round 1: no usable reply")
    assert (tmp_path / "error.txt").read_text() == "round 1: no usable reply\n"
    RunFolder(tmp_path).start(VALUES, model(), state(), resume=True)
    assert not (tmp_path / "error.txt").exists()


def test_resume_refuses_another_configuration_or_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        RunFolder(tmp_path).start(VALUES, model(), state(), resume=True)
    RunFolder(tmp_path).start(VALUES, model(), state(), resume=False)
    with pytest.raises(RunError, match="seed was 0 and is now 1"):
        RunFolder(tmp_path).start({**VALUES, "seed": 1}, model(), state(), resume=True)
