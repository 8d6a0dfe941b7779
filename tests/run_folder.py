"""Runs that tests leave in folders."""

import csv
import json
from collections.abc import Mapping, Sequence
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
from fedmrn_app.results.summary import summarize
from fedmrn_app.tasks.classification import Classification
from fedmrn_app.tasks.task import Task

MADE_WITH = {"fedmrn": "1.2", "commit": "0123456789ab", "torch": "3.4", "cores": 2, "processor": "a CPU", "gpus": []}
VALUES: dict[str, Any] = {"rounds": 3, "seed": 0, "local": {"lr": 0.1}}
IMAGES = Classification(channels=1, height=8, width=8, classes=10, mean=(0.5,), std=(0.5,))


def row(number: int, accuracy: float) -> Round:
    return Round(
        round=number, metrics={"accuracy": accuracy}, sampled=0.25, loss=0.5, train_loss=0.6, loss_gap=0.1,
        headline_gap=-0.01, uplink_bytes=100.0, uplink_bits_per_parameter=1.25, downlink_bytes=400.0,
        downlink_bits_per_parameter=5.0, total_bits_per_parameter=6.25, clients_ok=9, clients_failed=1,
        train_seconds=2.0, compress_seconds=0.02, decode_seconds=0.001, seconds=3.0, epsilon=0.7, model_rate=0.4,
        held_share=0.2, budget_left=0.3, clients_headline=0.45, mean_headline=0.4, worst_headline=0.35,
        clients_loss=0.7, clients_evaluated=5.0, evaluation_uplink_bytes=214.0, evaluation_downlink_bytes=50.0,
        averaged=0.48,
    )  # fmt: skip


def model(seed: int = 0) -> FlatModel:
    return FlatModel(build_model(digits, {}, IMAGES, seed))


def state(seed: int = 0) -> GlobalState:
    """Return a vector that differs from the model's weights, and a state of the rate control."""
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


def make_run(
    path: Path,
    strategy: str,
    seed: int,
    accuracies: Sequence[float],
    data: tuple[str, str] = ("shakespeare", "natural"),
    *,
    top: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """Leave a finished run and return its summary's path.

    Args:
        path: the run's folder.
        strategy: the method's name.
        seed: the run's seed.
        accuracies: a round each.
        data: data set and partition.
        top: settings that all strategies have.
        settings: settings of the strategy.
    """
    strategy_values = {"name": strategy, **settings}
    values = {**VALUES, "rounds": len(accuracies), "seed": seed, "strategy": strategy_values, **(top or {})}
    folder = RunFolder(path)
    folder.create(values, model(), state())
    for number, accuracy in enumerate(accuracies, 1):
        folder.add_round(row(number, accuracy), model(), state())
    facts = {"strategy": strategy, "dataset": data[0], "partition": data[1], "made_with": MADE_WITH}
    summary = summarize(folder.rounds, facts)
    (path / "summary.json").write_text(json.dumps(summary))
    return path / "summary.json"
