"""Runs that differ in what a comparison assumes to be equal are not compared or averaged as if they were alike."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedmrn_app.config.compose import compose_values
from fedmrn_app.report.comparison import NONE, against
from fedmrn_app.report.groups import Groups
from fedmrn_app.report.identity import is_shared
from fedmrn_app.report.published import published
from fedmrn_app.report.run_names import format_setting, names_runs
from fedmrn_app.report.runs import load_runs
from fedmrn_app.report.tables import across, choose, extra_tables, means, within
from fedmrn_app.results.resume import flatten
from tests.run_folder import MADE_WITH, make_run

PLACE = "fashion_mnist, label_shard"
SETTING = {
    "clients": 100, "clients_per_round": 10, "precision": "float32", "device": "cpu", "validation": None,
    "partition": {"name": "label_shard", "labels_per_client": 3, "balancing": "none"},
    "model": {"name": "cnn4", "norm": "tracked"},
    "local": {"epochs": 10, "batch_size": 64, "weight_decay": 0.0, "lr": 0.1},
    "evaluation": {"samples": None, "on": "server"},
    "dataset": {"name": "fashion_mnist", "augmentation": "none"},
}  # fmt: skip
MIXED = [
    ("clients", 10),
    ("clients_per_round", 20),
    ("precision", "bfloat16"),
    ("device", "cuda"),
    ("partition.labels_per_client", 9),
    ("partition.balancing", "niid_bench"),
    ("model.norm", "group"),
    ("local.epochs", 1),
    ("local.batch_size", 32),
    ("local.weight_decay", 0.001),
    ("evaluation.samples", 1000),
    ("dataset.augmentation", "crop_flip"),
]


def changed(key: str, value: object) -> dict[str, Any]:
    section, _, name = key.rpartition(".")
    return SETTING | ({section: SETTING[section] | {name: value}} if section else {key: value})  # type: ignore[operator]


def leave(folder: Path, strategy: str, seed: int, accuracy: float, top: Mapping[str, Any]) -> Path:
    accuracies = (accuracy / 2, accuracy)
    return make_run(folder, strategy, seed, accuracies, ("fashion_mnist", "label_shard"), top={**SETTING, **top})


@pytest.mark.parametrize(("key", "value"), MIXED, ids=[key for key, _ in MIXED])
def test_runs_of_another_setting_are_refused_in_each_table(key: str, value: object, tmp_path: Path) -> None:
    leave(tmp_path / "fedavg", "fedavg", 0, 0.8, {})
    leave(tmp_path / "alike", "eden", 0, 0.7, {})
    leave(tmp_path / "other", "eden", 1, 0.9, changed(key, value))
    groups = Groups.of(load_runs(tmp_path))
    alike, other = (f"{PLACE}, {key}={format_setting(one)}" for one in (flatten(SETTING)[key], value))
    assert groups.runs["identity"].nunique() == 2
    assert list(groups.table["data"]) == [alike, alike, other]
    assert list(means(groups)["seeds"]) == ["1", "1", "1"]  # seeds of different settings are no group
    table = against(groups, "strategy=fedavg", 1)
    assert list(table["verdict"].iloc[:, 0]) == ["one seed", f"differs in {key}"]
    assert list(table["common seeds"]) == ["1", "0"]
    assert across(groups, 1).columns.str.startswith(alike + ":").any()
    assert across(groups, 1).columns.str.startswith(other + ":").any()
    assert list(within(groups, [9.0], 1)["9 MB up"]) == ["(70.00)", "**(80.00)**", "**(90.00)**"]  # of each
    assert len(choose(groups, "local.lr", 1)) == 3
    losses = extra_tables(groups)["Best accuracy less FedAvg's, summed over partitions, in points"]
    assert list(losses["sum"]) == ["-10.0"]


def test_settings_that_are_chosen_are_compared_on_purpose(tmp_path: Path) -> None:
    leave(tmp_path / "a", "eden", 0, 0.7, {})
    leave(tmp_path / "b", "eden", 0, 0.9, changed("local.epochs", 1))
    groups = Groups.of(load_runs(tmp_path))
    assert list(choose(groups, "local.epochs", 1)["data"]) == [PLACE]
    table = against(groups, "local.epochs=10", 1)
    assert list(table["verdict"].iloc[:, 0]) == ["one seed"]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    leave(tmp_path / "a", "fedavg", 0, 0.7, {})
    make_run(tmp_path / "b", "eden", 0, (0.5,), ("fashion_mnist", "label_shard"), top=SETTING)
    make_run(tmp_path / "c", "eden", 0, (0.5,), ("svhn", "label_shard"), top=SETTING)
    table = against(Groups.of(load_runs(tmp_path)), "strategy=fedavg", 1)
    assert list(table["verdict"].iloc[:, 0]) == ["differs in rounds", NONE]


def test_a_setting_that_each_method_chooses_is_named(tmp_path: Path) -> None:
    for name, top in (("a", {}), ("b", {"server_lr": 0.64}), ("c", changed("local.lr", 0.3))):
        leave(tmp_path / name, {"a": "fedavg", "b": "eden", "c": "drive"}[name], 0, 0.7, top)
    runs = load_runs(tmp_path)
    assert runs["identity"].nunique() == 1
    assert list(runs["run"]) == ["fedavg", "eden server_lr=0.64", "drive local.lr=0.3"]


def test_an_automatic_device_is_that_of_the_machine(tmp_path: Path) -> None:
    for name, device, gpus in (("a", "auto", []), ("b", "auto", ["a GPU"]), ("c", "cpu", ["a GPU"]), ("d", "cuda", [])):
        summary = leave(tmp_path / name, "eden", 0, 0.7, {"device": device})
        made = {"made_with": {**MADE_WITH, "gpus": gpus}}
        summary.write_text(json.dumps({**json.loads(summary.read_text()), **made}))
    assert [data.rpartition("=")[2] for data in load_runs(tmp_path)["data"]] == ["cpu", "cuda", "cpu", "cuda"]


def test_each_key_is_shared_or_names_runs_or_changes_no_result() -> None:
    keys = [key for key in flatten(compose_values(["validation=0.1"])) if not key.startswith("hydra")]
    without_effect = {key for key in keys if not is_shared(key) and not names_runs(key)}
    assert without_effect == {
        "seed", "resume", "restarts", "round_timeout", "node_timeout", "client_gpus", "device", "strategy.name",
        "dataset.path", "log.name",
    }  # fmt: skip
    assert not is_shared("local.lr")
    assert all(map(is_shared, ("clients", "validation", "partition.name", "evaluation.samples", "model.name")))


def test_published_figures_stand_only_beside_their_own_setting() -> None:
    theirs = flatten(compose_values(["experiment=fmnist_label_shard"]))

    def figure(changes: Mapping[str, object], metric: str = "accuracy") -> float | None:
        return published("fedmrn", "fashion_mnist", "label_shard", metric, {**theirs, **changes})

    assert figure({}) == figure({"rounds": 200}) == figure({"precision": "bfloat16"}) == 88.6
    assert figure({"local.lr": 0.3, "strategy.name": "eden", "uplink.bits": 0.5}) == 88.6
    for key, value in (
        ("rounds", 99), ("clients", 10), ("clients_per_round", 9), ("local.epochs", 1), ("local.batch_size", 16),
        ("partition.labels_per_client", 9), ("evaluation.samples", 1000), ("model.name", "mlp"),
        ("validation", 0.1), ("dataset.augmentation", "crop_flip"),
    ):  # fmt: skip
        assert figure({key: value}) is None, key
    assert figure({}, "loss") is None
    dirichlet = flatten(compose_values(["experiment=fmnist_dirichlet"]))
    assert published("eden", "fashion_mnist", "dirichlet", "accuracy", dirichlet) == 89.8
    assert (
        published("eden", "fashion_mnist", "dirichlet", "accuracy", dirichlet | {"partition.balancing": "none"}) is None
    )


def test_figures_of_tables_of_other_tasks_need_their_metric() -> None:
    roles = flatten(compose_values(["experiment=shakespeare"]))
    assert published("fedmrn", "shakespeare", "natural", "accuracy", roles) == 51.1
    assert published("fedmrn", "shakespeare", "natural", "accuracy", roles | {"rounds": 2, "clients": 40}) is None
    images = flatten(compose_values(["experiment=segmentation"]))
    assert published("fedmrn", "pascal_voc", "iid", "accuracy", images) == 54.2
    assert published("fedmrn", "pascal_voc", "iid", "mean_iou", images) is None
    assert published("fedmrn", "digits", "iid", "accuracy", images) is None
