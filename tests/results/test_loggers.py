"""Loggers: the libraries hold what a run logged, and their failures do not end it."""

import importlib.util
import json
import math
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from omegaconf import OmegaConf

from fedmrn_app.errors import ConfigError
from fedmrn_app.results.loggers.feed import Feed, check_library
from fedmrn_app.results.round_row import RowReader, to_row
from fedmrn_app.results.run_folder import RunFolder
from fedmrn_app.results.summary import summarize
from tests.paths import ROOT
from tests.run_folder import VALUES, model, row, state

CONFIG = {**VALUES, "strategy": {"name": "fedmrn"}, "dataset": {"name": "digits"}}
ACCURACIES = (0.25, 0.75, 0.5)


def needs(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed")


def config(name: str, **settings: Any) -> dict[str, Any]:
    """Return a configuration whose `log` group has the settings of `conf/log/NAME.yaml`."""
    defaults = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / "log" / f"{name}.yaml"))
    return {**CONFIG, "log": {**cast(dict[str, Any], defaults), **settings}}


def log_run(folder: Path, values: dict[str, Any], lines: list[str]) -> None:
    """Leave a run of three rounds and log each as soon as it has ended."""
    run = RunFolder(folder)
    run.create(values, model(), state())
    rows, feed = RowReader(folder), Feed(values, folder, lines.append)
    for number, accuracy in enumerate(ACCURACIES, 1):
        run.add_round(row(number, accuracy), model(), state())
        feed.add(rows.read())
    run.finish(summarize(run.rounds, {"strategy": "fedmrn"}))
    feed.end(json.loads((folder / "summary.json").read_text()))


@needs("tensorboard")
def test_tensorboard_holds_rows_configuration_and_curves(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    lines: list[str] = []
    for _ in range(2):  # a run that resumes is logged again
        log_run(tmp_path / "run", config("tensorboard"), lines)
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
    log_run(tmp_path / "run", config("mlflow", folder=str(tmp_path / "logs"), project="papers"), lines)
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
    """Yield the records of an offline run's file: a header of 7 bytes, then blocks of 32 KiB as in LevelDB's logs."""
    place, record = 7, b""
    while place + 7 <= len(data):
        if (1 << 15) - place % (1 << 15) < 7:  # the rest of a block is too short for a header
            place += (1 << 15) - place % (1 << 15)
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield record
            record = b""


@pytest.mark.slow
@needs("wandb")
def test_wandb_holds_rows_and_configuration_offline(tmp_path: Path) -> None:
    from wandb.proto import wandb_internal_pb2

    lines: list[str] = []
    log_run(tmp_path / "run", config("wandb"), lines)
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


def test_failing_library_is_reported_once(tmp_path: Path) -> None:
    lines: list[str] = []
    (tmp_path / "file").touch()
    log_run(tmp_path / "run", config("tensorboard", folder=str(tmp_path / "file")), lines)
    (line,) = lines
    assert line.startswith("log=tensorboard: ")


@needs("tensorboard")
def test_values_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    feed = Feed(config("tensorboard"), tmp_path, print)
    feed.add([to_row(replace(row(1, 0.5), sampled=math.nan))])
    feed.end(None)
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    tags = found.Tags()["scalars"]
    assert "rounds/accuracy" in tags
    assert "rounds/sampled_accuracy" not in tags
    assert "rounds/round" not in tags


def test_missing_library_is_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        check_library("no_such_library")
    assert (refused.value.code, refused.value.key, refused.value.value) == ("not-installed", "log", "no_such_library")
    check_library("none")
