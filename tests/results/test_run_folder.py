"""The run's folder: rows as they come, a model that loads, and going on where a run stopped."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from safetensors.torch import load_file

from fedmrn_app.config.build import resolve_from_data
from fedmrn_app.config.compose import compose_values, default_values
from fedmrn_app.errors import RunError
from fedmrn_app.federation.protocol import GlobalState
from fedmrn_app.results.lock import locked
from fedmrn_app.results.progress import progress_line
from fedmrn_app.results.round_row import columns, from_row, to_row
from fedmrn_app.results.run_folder import VECTOR, RunFolder, finished
from tests.run_folder import VALUES, model, row, rows_on_disk, state


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
    (tmp_path / "previous.safetensors").replace(tmp_path / "model.safetensors")  # as if round 2 had not been saved
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
    with pytest.raises(RunError, match="seed was 0 and is now 1; say seed=0"):
        RunFolder(tmp_path).start({**VALUES, "seed": 1}, model(), state(), resume=True)
    with pytest.raises(RunError, match=r"local\.lr was 0\.1 and is now 0\.2"):
        RunFolder(tmp_path).start({**VALUES, "local": {"lr": 0.2}}, model(), state(), resume=True)


def test_keys_that_a_newer_version_adds_may_have_their_default(tmp_path: Path) -> None:
    RunFolder(tmp_path).start(VALUES, model(), state(), resume=False)
    newer = {**VALUES, "local": {"lr": 0.1, "momentum": 0.0}, "radius": 1}

    def defaults(values: dict[str, Any]) -> dict[str, Any]:
        return {"seed": 5, "local": {"lr": 0.3, "momentum": 0.0}, "radius": 1}

    assert RunFolder(tmp_path).start(newer, model(), state(), resume=True, defaults=defaults) == 0
    with pytest.raises(RunError, match="radius was 1 and is now 2"):
        RunFolder(tmp_path).start({**newer, "radius": 2}, model(), state(), resume=True, defaults=defaults)


def test_defaults_of_a_configuration_are_those_of_its_choices() -> None:
    values, _, _ = resolve_from_data(compose_values(["strategy=eden", "strategy.bits=2", "seed=7", "model=mlp"]))
    found = default_values(values)
    assert (found["strategy"]["name"], found["strategy"]["bits"], found["seed"]) == ("eden", 1, 0)
    assert found["model"]["name"] == "mlp"


def test_new_run_does_not_take_the_place_of_another(tmp_path: Path) -> None:
    RunFolder(tmp_path).start(VALUES, model(), state(), resume=False)
    with pytest.raises(RunError, match=r"holds a run already; resume=true goes on with it"):
        RunFolder(tmp_path).start(VALUES, model(), state(), resume=False)


def test_folder_is_worked_in_by_one_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path / "new", "run"):
        with locked(tmp_path / "new", "other"):
            pass
        with pytest.raises(RunError, match="another run is at work in it"), locked(tmp_path / "new", "run"):
            pass
    with locked(tmp_path / "new", "run"):
        pass


def test_finished_run_is_known_by_its_configuration_and_rounds(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.start(VALUES, model(), state(), resume=False)
    for number in (1, 2, 3):
        assert finished(tmp_path, VALUES, dict) is None
        folder.add_round(row(number, 0.5), model(), state())
    assert finished(tmp_path, VALUES, dict) is None
    folder.finish(folder.summarise({}))
    assert finished(tmp_path, VALUES, dict) == json.loads((tmp_path / "summary.json").read_text())
    assert finished(tmp_path, {**VALUES, "rounds": 4}, dict) is None
    assert finished(tmp_path, {**VALUES, "seed": 1}, dict) is None
