"""Every configuration there is composes, and what people type arrives as it is."""

import json
from dataclasses import asdict, fields

import pytest

from fedmrn_app.config.build import find_conf, resolve_from_data
from fedmrn_app.config.compose import (
    GROUPS,
    compose_values,
    load_config,
    parse_overrides,
    quote_override,
)
from fedmrn_app.config.schema import Config
from fedmrn_app.config.sweep import expand_sweep
from fedmrn_app.errors import ConfigError
from fedmrn_app.methods import find_methods

CHOICES = [(group, path.stem) for group in GROUPS for path in sorted((find_conf() / group).glob("*.yaml"))]
EXPERIMENTS = [name for group, name in CHOICES if group == "experiment"]
STRATEGIES = [name for group, name in CHOICES if group == "strategy"]
BESIDE = {  # what a choice needs beside it
    ("model", "bisenet_v2"): ["dataset=camvid"],
    ("model", "char_lstm"): ["dataset=shakespeare"],
    ("model", "own"): ["model._target_=fedmrn_app.learning.models.mlp.mlp", "model.hidden=[5]"],
    ("task", "own"): ["task._target_=fedmrn_app.tasks.characters.Characters", "task.window=20"],
}


def test_default_is_fedmrn_on_digits() -> None:
    config = load_config(())
    assert (config.strategy["name"], config.dataset["name"], config.partition.name) == ("fedmrn", "digits", "iid")
    assert (config.clients, config.noise.distribution, config.noise.alpha) == (10, "uniform", 0.01)
    assert config.model["name"] == "digits"


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategy_has_every_option_of_its_method(name: str) -> None:
    options = {field.name for field in fields(find_methods()[name])}
    assert set(load_config((f"strategy={name}",)).strategy) == {"name"} | options


@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_every_choice_composes(group: str, name: str) -> None:
    images = ["dataset=cifar10"] if group == "model" and name not in ("digits", "own") else []
    config = load_config((*BESIDE.get((group, name), images), f"{group}={name}"))
    assert isinstance(config, Config)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_experiment_takes_every_strategy(experiment: str, strategy: str) -> None:
    if experiment == "submodel_cifar10" and strategy != "submodel":  # is of channels, which the others know nothing of
        with pytest.raises(ConfigError, match=r"strategy\.granularity=channel: unknown key"):
            load_config((f"experiment={experiment}", f"strategy={strategy}"))
        return
    config = load_config((f"experiment={experiment}", f"strategy={strategy}"))
    assert config.strategy["name"] == strategy
    if not experiment.startswith(("fedscalar", "submodel", "shakespeare", "segmentation")):
        assert (config.clients, config.clients_per_round) == (100, 10)
        assert (config.local.epochs, config.local.batch_size) == (10, 64)


def test_settings_of_the_paper() -> None:
    binary, signed, plain = (
        load_config(("experiment=fmnist_iid", f"strategy={s}")) for s in ("fedmrn", "fedmrns", "fedavg")
    )
    assert (binary.noise.alpha, signed.noise.alpha) == (1e-2, 5e-3)
    assert (binary.local.lr, signed.local.lr, plain.local.lr) == (0.1, 0.1, 0.03)
    assert (binary.model["name"], binary.rounds) == ("cnn4", 100)
    hundred = load_config(("experiment=cifar100_dirichlet",)), load_config(("experiment=cifar100_label_shard",))
    assert (hundred[0].partition.alpha, hundred[1].partition.labels_per_client) == (0.2, 20)
    for data in ("fmnist", "svhn", "cifar10", "cifar100"):
        assert load_config((f"experiment={data}_dirichlet",)).partition.balancing == "niid_bench"


def test_settings_of_the_other_papers() -> None:
    roles, scenes = load_config(("experiment=shakespeare",)), load_config(("experiment=segmentation",))
    assert (roles.partition.name, roles.clients, roles.clients_per_round, roles.rounds) == ("natural", 1129, 112, 100)
    assert (roles.local.epochs, roles.local.batch_size, roles.local.lr, roles.noise.alpha) == (1, 128, 3.0, 3e-3)
    assert (scenes.clients, scenes.clients_per_round, scenes.local.epochs, scenes.local.lr) == (60, 10, 2, 0.05)
    scalar = load_config(("experiment=fedscalar_digits",))
    assert (scalar.strategy["name"], scalar.model["hidden"], scalar.dataset["test_size"]) == (
        "fedscalar",
        [3, 3, 3],
        197,
    )
    assert (scalar.clients, scalar.local.steps, scalar.local.batch_size, scalar.local.lr) == (20, 5, 10, 0.01)
    parts = load_config(("experiment=submodel_cifar10",))
    assert parts.strategy["capacities"] == [1.0, 0.5, 0.25, 0.125, 0.0625]
    assert (parts.model["name"], parts.partition.labels_per_client) == ("preact_resnet18", 2)


def test_command_line_wins_over_strategy_and_experiment() -> None:
    config = load_config(("noise.alpha=0.5", "local.lr=7", "experiment=fmnist_iid", "strategy=fedmrns", "rounds=3"))
    assert (config.noise.alpha, config.local.lr, config.rounds) == (0.5, 7, 3)


def test_measured_values_are_complete_and_stay_as_they_are() -> None:
    values, config, task = resolve_from_data(compose_values(("strategy=fedmrns", "noise.alpha=0.5")))
    assert json.loads(json.dumps(values)) == values
    again, same, _ = resolve_from_data(json.loads(json.dumps(values)))
    assert (again, asdict(same)) == (values, asdict(config))
    assert task.inputs() == {"channels": 1, "size": (8, 8), "shape": (1, 8, 8), "classes": 10}


def test_sweep_is_every_run_of_it() -> None:
    assert expand_sweep(["rounds=3", "seed=0,1", "strategy=choice(fedmrn,fedavg)", "hydra.sweep.dir='/a=b'"]) == [
        ["rounds=3", "seed=0", "strategy=fedmrn"],
        ["rounds=3", "seed=0", "strategy=fedavg"],
        ["rounds=3", "seed=1", "strategy=fedmrn"],
        ["rounds=3", "seed=1", "strategy=fedavg"],
    ]
    assert expand_sweep(["seed=range(2)"]) == [["seed=0"], ["seed=1"]]


@pytest.mark.parametrize(
    "path",
    ["/plain", "/with space/and 'quotes'", 'a="b",c=[d]', "back\\slash", "end\\", "\\'both\\\\'", "ünïcode", "${x}$"],
)
def test_any_path_survives(path: str) -> None:
    overrides = ("dataset=cifar10", quote_override("dataset.path", path), "seed=4")
    assert parse_overrides(json.dumps(overrides)) == overrides
    if "${" not in path:  # OmegaConf's interpolation, which no quoting turns off
        assert load_config(overrides).dataset["path"] == path


def test_overrides_of_people() -> None:
    assert parse_overrides("") == ()
    assert parse_overrides("strategy=fedavg  rounds=3 dataset.path='a b'") == (
        "strategy=fedavg",
        "rounds=3",
        "dataset.path=a b",
    )
    with pytest.raises(ConfigError, match="strings only"):
        parse_overrides("[1]")
    with pytest.raises(ConfigError, match="overrides=seed='1: cannot be read"):
        parse_overrides("seed='1")
