"""Regression: a quantity as the label, from the file to the metrics, and which way a metric is better."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_diabetes

from fedmrn_app import validation as typed
from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.config.sweep import open_sweep
from fedmrn_app.errors import ConfigError, DataError
from fedmrn_app.federation.downlinks import downlink_of
from fedmrn_app.federation.loop import run_rounds
from fedmrn_app.learning.evaluate import evaluate
from fedmrn_app.results.progress import Best
from fedmrn_app.results.round_row import Round
from fedmrn_app.results.summary import summarize
from fedmrn_app.tasks.regression import Regression
from fedmrn_app.tasks.task import Task
from tests.data.conftest import cache as cache
from tests.own_rows import own, write_images, write_npz
from tests.run_folder import row

ROWS = 60
RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(ROWS, 3))
PRICES = 1000 + 200 * X[:, 0] + RANDOM.normal(size=ROWS)


def quantity(path: Path, **changes: Any) -> Regression:
    return typed.build(Regression, {"name": "own", "path": str(path), **changes}, "dataset")


def diabetes(folder: Path) -> Path:
    load_diabetes(as_frame=True, scaled=False).frame.to_csv(folder / "diabetes.csv", index=False)
    return folder / "diabetes.csv"


def california(folder: Path) -> Path:
    """A table with the columns of California Housing, and prices that follow from them."""
    income, latitude = RANDOM.lognormal(1.3, 0.45, 400), RANDOM.uniform(32, 42, 400)
    value = np.clip(0.4 * income + 0.3 * np.sin(latitude) + RANDOM.normal(0, 0.2, 400), 0.15, 5)
    pd.DataFrame({"MedInc": income, "Latitude": latitude, "MedHouseVal": value}).to_parquet(folder / "c.parquet")
    return folder / "c.parquet"


@pytest.mark.parametrize(
    ("make", "words", "least"),
    [(diabetes, [], 0.4), (california, ["dataset.label_column=MedHouseVal"], 0.6)],
)
def test_a_table_with_a_decimal_label_is_learned(make: Any, words: list[str], least: float, tmp_path: Path) -> None:
    path = make(tmp_path)
    overrides = ["dataset=own", f"dataset.path={path}", "task=regression", *words, "rounds=5", "clients=4"]
    values, config, task = resolve_from_data(
        compose_values([*overrides, "clients_per_round=4", "model=mlp", "model.hidden=[64]"])
    )
    assert values["dataset"]["task"] == "regression"
    worker = build_worker(config)
    model, protocol = worker.model()
    state = run_rounds(worker)
    model.load(protocol.method.server.weights(downlink_of(protocol).model(state), protocol.layout), state.dense)
    samples = task.load("test")
    found = evaluate(model, task, samples)
    assert found.metrics["r2"] > least
    assert isinstance(task, Regression)
    x, y = samples.take(slice(None))
    with torch.no_grad():
        predicted = task.in_units(model.module(task.batch(torch.from_numpy(x), torch.from_numpy(y))[0])).numpy()
    assert found.metrics["rmse"] == pytest.approx(np.sqrt(np.mean((predicted - y) ** 2)), rel=1e-4)
    assert found.metrics["mae"] == pytest.approx(np.mean(np.abs(predicted - y)), rel=1e-4)
    assert found.metrics["r2"] == pytest.approx(1 - np.mean((predicted - y) ** 2) / y.var(), rel=1e-4)


def test_labels_are_standardized_by_the_training_rows_and_travel(tmp_path: Path) -> None:
    task = quantity(write_npz(tmp_path / "a.npz", x=X, y=PRICES[:, None])).measured()
    assert task == typed.build(Regression, json.loads(json.dumps(asdict(task))), "dataset").measured()
    train = task.load("train")
    assert (len(train), len(task.load("test")), train.labels) == (48, 12, None)
    y = np.array(train.y[:])
    assert (task.target_mean, task.target_std) == pytest.approx((y.mean(), y.std()), rel=1e-4)
    _, standardized = task.batch(torch.from_numpy(np.array(train.x[:])), torch.from_numpy(y))
    assert (float(standardized.mean()), float(standardized.std(correction=0))) == pytest.approx((0, 1), abs=1e-4)
    (split, *_) = task.describe().splits
    assert "1000" in split.note.replace(",", "") or "in the mean" in split.note
    mine = task.local(str(write_npz(tmp_path / "mine.npz", x=X[:4], y=PRICES[:4]))).load("train")
    assert np.array_equal(np.array(mine.y[:]), PRICES[:4])


def test_tallies_add_and_equal_labels_have_no_r2() -> None:
    task = Regression(target_mean=5.0, target_std=2.0)
    outputs, y = torch.tensor([[0.5], [1.0], [-1.0]]), torch.tensor([0.0, 1.0, -2.0])
    parts = task.tally(outputs[:1], y[:1]) + task.tally(outputs[1:], y[1:])
    assert torch.equal(parts, task.tally(outputs, y))
    assert parts.shape == task.tally_shape
    found = task.read(parts.numpy())
    assert found == pytest.approx({"r2": 1 - 1.25 / (5 - 1 / 3), "rmse": 2 * np.sqrt(1.25 / 3), "mae": 1.0})
    assert np.isnan(task.read(task.tally(outputs, torch.ones(3) / 3).numpy())["r2"])


@pytest.mark.parametrize(
    ("y", "code"),
    [(np.full(ROWS, 3.5), "classes"), (np.where(X[:, 0] > 2, np.nan, 1.0) * PRICES, "label"), (["a"] * ROWS, "type")],
)
def test_labels_that_are_no_quantity_are_refused(y: Any, code: str, tmp_path: Path) -> None:
    values = np.array(y)
    if values.dtype.kind == "f" and code == "label":
        values[7] = np.nan
    with pytest.raises(DataError) as error:
        quantity(write_npz(tmp_path / "a.npz", x=X, y=values)).measured()
    assert error.value.code == code


def test_decimal_labels_name_the_task_that_learns_them(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", x=X, y=PRICES)
    with pytest.raises(DataError) as error:
        own(path).measured()
    assert error.value.code == "type"
    assert "task=regression" in str(error.value)
    with pytest.raises(DataError, match="task=regression"):
        own(diabetes(tmp_path)).measured()
    with pytest.raises(DataError) as error:
        quantity(write_images(tmp_path / "p", {"a": np.zeros((2, 4, 4), np.uint8)})).measured()
    assert error.value.code == "type"


@pytest.mark.parametrize("words", [["dataset=digits"], ["dataset=own", "dataset.classes=3"]])
def test_data_with_classes_are_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        compose_values(["task=regression", *words])
    assert error.value.code in ("dataset", "unknown-key")


def test_partitions_divide_the_tenths_of_a_quantity(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", x=np.arange(400.0)[:, None], y=np.arange(400))
    words = ["dataset=own", f"dataset.path={path}", "task=regression", "dataset.test_share=0.25", "clients=10"]
    config = resolve_from_data(compose_values([*words, "partition=label_shard", "partition.labels_per_client=2"]))[1]
    worker = build_worker(config)
    y = np.sort(np.asarray(worker.rows.samples.y[:]))
    ends = np.quantile(y, np.arange(1, 10) / 10)
    for client in range(10):
        mine = np.asarray(worker.rows.training(client).take(slice(None))[1])
        assert len(np.unique(np.searchsorted(ends, mine, side="right"))) == 2
    values = compose_values([*words, "partition=label_shard", "partition.labels_per_client=11"])
    with pytest.raises(ConfigError) as error:
        build_worker(resolve_from_data(values)[1])
    assert (error.value.key, error.value.code) == ("partition.labels_per_client", "conflict")
    config = resolve_from_data(compose_values([*words, "partition=dirichlet", "partition.alpha=0.1"]))[1]
    assert sum(build_worker(config).sample_count(client) for client in range(10)) == 300


def rounds_of(*values: float) -> list[Round]:
    return [replace(row(number, value), metrics={"rmse": value}) for number, value in enumerate(values, 1)]


class Errors(Task):
    metrics = ("rmse",)
    less_is_better = ("rmse",)


def test_less_of_an_error_is_better() -> None:
    rounds = rounds_of(4.0, 2.0, 3.0, float("nan"))
    assert Errors.sign() == -1
    best = Best(sign=Errors.sign(), patience=2)
    assert [best.is_best(rounds[: n + 1]) for n in range(4)] == [True, True, False, False]
    best.check(rounds)
    with pytest.raises(Exception, match=r"round 2 \(2.0000\)"):
        best.check([*rounds, *rounds_of(2.5)])
    summary = summarize(rounds, {}, less=True)
    assert (summary["best_round"], summary["best_rmse"], summary["less_is_better"]) == (2, 2.0, True)
    assert summarize(rounds, {})["best_round"] == 1


def test_a_search_follows_the_metric() -> None:
    words = ["experiment=tune/learning_rate", "hydra.sweeper.direction=minimize"]
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    with pytest.raises(ConfigError) as error:
        open_sweep(words).check()
    assert (error.value.key, error.value.code) == ("hydra.sweeper.direction", "direction")
