"""What arrives in the libraries is read back from them; and what they make of it never ends a run."""

import importlib.util
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmrn_app.config.schema import LogConfig
from fedmrn_app.errors import ConfigError
from fedmrn_app.results.loggers.feed import Feed, check_library
from fedmrn_app.results.run_folder import RunFolder
from tests.run_folder import VALUES, model, row, state

CONFIG = {**VALUES, "strategy": {"name": "fedmrn"}, "dataset": {"name": "digits"}}
ACCURACIES = (0.25, 0.75, 0.5)


def needs(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed")


def log_run(folder: Path, config: LogConfig, lines: list[str]) -> None:
    """Three rounds of a real folder, each told as soon as it has ended, and the end."""
    run = RunFolder(folder)
    run.start(CONFIG, model(), state(), resume=False)
    feed = Feed(config, CONFIG, folder, lines.append)
    for number, accuracy in enumerate(ACCURACIES, 1):
        run.add_round(row(number, accuracy), model(), state())
        feed.read()
    run.finish(run.summarise({"strategy": "fedmrn"}))
    feed.end(json.loads((folder / "summary.json").read_text()))


@needs("tensorboard")
def test_tensorboard_holds_rows_configuration_and_curves(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    lines: list[str] = []
    for _ in range(2):  # a run that goes on is logged anew
        log_run(tmp_path / "run", LogConfig("tensorboard"), lines)
        for path in (tmp_path / "run").glob("*.*"):
            path.unlink()
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard"), {"images": 0, "tensors": 0})
    found.Reload()
    scalars = [(event.step, round(event.value, 6)) for event in found.Scalars("rounds/accuracy")]
    assert scalars == [(1, 0.25), (2, 0.75), (3, 0.5)]
    assert [event.value for event in found.Scalars("summary/best_accuracy")] == [0.75]
    (text,) = found.Tensors("config/text_summary")
    assert b"lr: 0.1" in text.tensor_proto.string_val[0]
    (picture,) = found.Images("curves")
    assert min(picture.width, picture.height) > 100
    assert lines == []


@pytest.mark.slow
@needs("mlflow")
def test_mlflow_holds_rows_configuration_and_files(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    lines: list[str] = []
    log_run(tmp_path / "run", LogConfig("mlflow", folder=str(tmp_path / "logs"), project="papers"), lines)
    assert lines == []
    client = MlflowClient(f"sqlite:///{tmp_path / 'logs' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("papers")
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "accuracy")
    assert [(metric.step, metric.value) for metric in history] == [(1, 0.25), (2, 0.75), (3, 0.5)]
    assert (run.data.params["local.lr"], run.data.params["strategy.name"]) == ("0.1", "fedmrn")
    assert run.info.status == "FINISHED"
    names = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert names == {"config.yaml", "rounds.csv", "summary.json", "curves.png"}


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of an offline run's file: after a head of 7 bytes blocks of 32 KiB, as LevelDB's logs have them."""
    place, record = 7, b""
    while place + 7 <= len(data):
        if (1 << 15) - place % (1 << 15) < 7:  # the rest of a block, too short for a header
            place += (1 << 15) - place % (1 << 15)
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


@pytest.mark.slow
@needs("wandb")
def test_wandb_holds_rows_and_configuration_offline(tmp_path: Path) -> None:
    from wandb.proto import wandb_internal_pb2

    lines: list[str] = []
    log_run(tmp_path / "run", LogConfig("wandb"), lines)
    assert lines == []
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    accuracies, settings = [], {}
    for data in wandb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        for item in record.history.item:
            if "accuracy" in (item.key, *item.nested_key):
                accuracies.append(json.loads(item.value_json))
        settings.update({update.key: json.loads(update.value_json) for update in record.run.config.update})
    assert tuple(accuracies) == ACCURACIES
    assert settings["local"] == {"lr": 0.1}


def test_library_that_fails_is_told_once_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    blocked = tmp_path / "file"
    blocked.write_text("")
    log_run(tmp_path / "run", LogConfig("tensorboard", folder=str(blocked)), lines)
    (line,) = lines
    assert line.startswith("log=tensorboard: ")
    assert line.endswith("; the run goes on")


def test_values_that_are_not_finite_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Kept:
        def row(self, number: int, values: dict[str, float]) -> None:
            seen.append((number, values))

        def close(self) -> None: ...

    monkeypatch.setattr("fedmrn_app.results.loggers.feed.open_logger", lambda *arguments: Kept())
    run = RunFolder(tmp_path)
    run.start(CONFIG, model(), state(), resume=False)
    feed = Feed(LogConfig("tensorboard"), CONFIG, tmp_path, seen.append)
    feed.read()
    assert seen == []
    entry = row(1, 0.5)
    run.add_round(type(entry)(**{**vars(entry), "sampled": float("nan")}), model(), state())
    feed.end(None)
    ((number, values),) = seen
    assert number == 1
    assert np.isfinite(list(values.values())).all()
    assert "sampled_accuracy" not in values


def test_missing_library_is_refused_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"log=wandb: is not installed; pip install 'fedmrn\[wandb\]'"):
        check_library(LogConfig("wandb"))
    check_library(LogConfig())
