"""What tests put into a run's folder."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmrn_app.config.build import build_flat_model, build_protocol, build_run_method, resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.config.schema import Config
from fedmrn_app.federation.protocol import GlobalState
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.models.build import build_model
from fedmrn_app.learning.models.cnn import digits
from fedmrn_app.results.round_row import Round
from fedmrn_app.results.run_folder import RunFolder
from fedmrn_app.tasks.classification import Classification
from fedmrn_app.tasks.task import Task

VALUES: dict[str, Any] = {"rounds": 3, "seed": 0, "local": {"lr": 0.1}}
IMAGES = Classification(channels=1, height=8, width=8, classes=10, mean=(0.5,), std=(0.5,))


def row(number: int, accuracy: float) -> Round:
    metrics = {"accuracy": accuracy}
    return Round(
        number,
        metrics,
        0.25,
        0.5,
        0.6,
        0.1,
        -0.01,
        100.0,
        1.25,
        400.0,
        5.0,
        6.25,
        9,
        1,
        2.0,
        0.02,
        0.001,
        3.0,
        0.7,
        0.4,
        0.2,
    )


def model(seed: int = 0) -> FlatModel:
    return FlatModel(build_model(digits, {}, IMAGES, seed))


def state(seed: int = 0) -> GlobalState:
    """A vector that is not the model's weights, and what steers the noise."""
    return GlobalState(np.full(7, seed, np.float32), np.empty(0, np.float32), np.full(3, seed + 1, np.float32))


@dataclass(frozen=True)
class Begun:
    """A run before its first round."""

    values: dict[str, Any]
    config: Config
    task: Task
    model: FlatModel
    state: GlobalState


def begun(*overrides: str) -> Begun:
    values, config, task = resolve_from_data(compose_values(overrides))
    method = build_run_method(config)
    flat = build_flat_model(config, task, method)
    first = build_protocol(config, method, flat).begin()
    return Begun(values, config, task, flat, first)


def rows_on_disk(folder: Path) -> list[dict[str, str]]:
    with (folder / "rounds.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def make_run(path: Path, strategy: str, seed: int, accuracies: tuple[float, ...], **settings: Any) -> Path:
    """A finished run's summary.json."""
    values = {**VALUES, "rounds": len(accuracies), "seed": seed, "strategy": {"name": strategy, **settings}}
    folder = RunFolder(path)
    folder.start(values, model(), state(), resume=False)
    for number, accuracy in enumerate(accuracies, 1):
        folder.add_round(row(number, accuracy), model(), state())
    folder.finish(folder.summarise({"strategy": strategy, "dataset": "shakespeare", "partition": "natural"}))
    return path / "summary.json"
