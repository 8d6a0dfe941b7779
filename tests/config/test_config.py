"""Every choice in conf/ composes, overrides arrive as they were typed, and a configuration is checked once."""

import itertools
import json
import shlex
from dataclasses import asdict, fields

import pytest
import torch
from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser

from fedmrn_app.config.build import build_module, build_task, find_conf, read_config, resolve_from_data
from fedmrn_app.config.compose import (
    GROUPS,
    choices_of,
    compose_checked,
    compose_values,
    load_config,
    open_own_groups,
    own_hydra,
    parse_overrides,
    quote_override,
    typed_override,
)
from fedmrn_app.config.resolved import read_resolved, write_resolved
from fedmrn_app.config.schema import Config
from fedmrn_app.config.sweep import open_sweep
from fedmrn_app.errors import ConfigError
from fedmrn_app.methods import find_methods

CHOICES = [(group, path.stem) for group in GROUPS for path in sorted((find_conf() / group).glob("*.yaml"))]
EXPERIMENTS = [name for group, name in CHOICES if group == "experiment"]
STRATEGIES = [name for group, name in CHOICES if group == "strategy"]
BESIDE = {  # what a choice needs beside it
    ("model", "bisenet_v2"): ["dataset=camvid"],
    ("model", "char_lstm"): ["dataset=shakespeare"],
    ("model", "word_average"): ["dataset=shakespeare"],
    ("model", "own"): ["model._target_=fedmrn_app.learning.models.mlp.mlp", "model.hidden=[5]"],
    ("task", "regression"): ["dataset=own"],
    ("task", "own"): ["task._target_=fedmrn_app.tasks.characters.Characters", "task.window=20"],
}


def test_default_is_fedmrn_on_digits() -> None:
    config = load_config(())
    assert (config.strategy["name"], config.dataset["name"], config.partition.name) == ("fedmrn", "digits", "iid")
    assert (config.clients, config.noise.distribution, config.noise.alpha) == (10, "uniform", 0.01)
    assert config.model["name"] == "digits"


@pytest.mark.slow
def test_strategies_have_every_option_of_their_methods() -> None:
    for name in STRATEGIES:
        strategy = load_config((f"strategy={name}",)).strategy
        options = {field.name for field in fields(find_methods()[strategy["name"]])}
        assert set(strategy) == {"name"} | options, name


@pytest.mark.parametrize(
    "group", [pytest.param(group, marks=() if group == "strategy" else pytest.mark.slow) for group in GROUPS]
)
def test_every_choice_composes(group: str) -> None:
    for name in (name for other, name in CHOICES if other == group):
        images = ["dataset=cifar10"] if group == "model" and name not in ("digits", "own") else []
        assert isinstance(load_config((*BESIDE.get((group, name), images), f"{group}={name}")), Config), name


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=pytest.mark.long if part else pytest.mark.slow) for part in range(8)]
)
def test_every_experiment_takes_every_strategy(part: int) -> None:
    for (i, experiment), (j, strategy) in itertools.product(enumerate(EXPERIMENTS), enumerate(STRATEGIES)):
        if (i + j) % 8 != part:
            continue
        overrides = (f"experiment={experiment}", f"strategy={strategy}")
        if experiment == "submodel_cifar10" and strategy != "submodel":  # narrows channels, which others do not
            with pytest.raises(ConfigError) as refusal:
                load_config(overrides)
            assert (refusal.value.code, refusal.value.key) == ("unknown-key", "strategy.granularity")
            continue
        config = load_config(overrides)
        assert config.strategy["name"] == {"fedpm_code": "fedpm"}.get(strategy, strategy)
        if not experiment.startswith(("fedscalar", "submodel", "shakespeare", "segmentation")):
            assert (config.clients, config.clients_per_round) == (100, 10), overrides
            assert (config.local.epochs, config.local.batch_size) == (10, 64), overrides


@pytest.mark.slow
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


_OF_LI2024 = ("fmnist_", "svhn_", "cifar10_", "cifar100_", "shakespeare", "segmentation", "fedmrn/")


@pytest.mark.parametrize(
    "strategy", ["fedmrn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedavg", "eden"))]
)
@pytest.mark.parametrize(
    "experiment",
    [
        pytest.param(name, marks=() if name.startswith("fmnist_") else pytest.mark.slow)
        for name in choices_of("experiment")
        if name.startswith(_OF_LI2024)
    ],
)
def test_experiments_of_the_paper_send_the_dense_part_in_float32(experiment: str, strategy: str) -> None:
    parts = (["part=shakespeare"], ["part=pascal_voc"]) if experiment == "fedmrn/table3" else ([],)
    for part in parts:
        config = load_config((f"experiment={experiment}", f"strategy={strategy}", *part))
        assert (config.uplink.dense_bits, config.uplink.bits, config.downlink.dtype) == (32, None, "float32"), part


@pytest.mark.slow
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


def test_resolved_values_are_complete_and_stay_as_they_are() -> None:
    values, config, task = resolve_from_data(compose_values(("strategy=fedmrns", "noise.alpha=0.5")))
    again, same, _ = resolve_from_data(json.loads(json.dumps(values)))
    assert (again, asdict(same)) == (values, asdict(config))
    assert task.inputs() == {"channels": 1, "size": (8, 8), "shape": (1, 8, 8), "classes": 10}
    assert read_config(values) is config  # the same values are checked once


def test_resolved_values_travel_with_their_hash() -> None:
    values = compose_values(("strategy=fedmrns", "local.lr=0.1"))
    text = write_resolved(values)
    assert read_resolved(text) == values
    for damaged in (text.replace("0.1", "0.2"), text[:-1], "[1]", '{"values":{}}', "", "[" * 100_000):
        with pytest.raises(ConfigError) as refusal:
            read_resolved(damaged)
        assert (refusal.value.code, refusal.value.key) == ("damaged", "config")


@pytest.mark.parametrize(
    "words",
    [
        "strategy=topk rounds=3 model=mlp 'model.hidden=[3,4]' ++local.steps=2",
        "experiment=fmnist_iid local.lr=0.1 +local.steps=2 'rounds=${clients}'",
        "model=own model._target_=a.b model.hidden=3 'model.sizes={a: [1,2]}'",
        "local.lr=0.1 local.lr=0.2 'uplink={bits: 0.3}' partition=dirichlet partition.alpha=1",
        "hydra.run.dir=x seed=3",
    ],
)
def test_values_are_set_as_hydra_sets_them(words: str) -> None:
    overrides = shlex.split(words)
    for _ in range(2):  # the choices are composed once and stay as they are
        found = compose_checked(overrides)
        with own_hydra():
            assert found == compose("config", open_own_groups(overrides))


def test_sweep_is_every_run_of_it() -> None:
    words = ["rounds=3", "seed=0,1", "strategy=choice(fedmrn,fedavg)", "hydra.sweep.dir='/a=b'"]
    assert open_sweep(words).runs == [
        ["rounds=3", "seed=0", "strategy=fedmrn"],
        ["rounds=3", "seed=0", "strategy=fedavg"],
        ["rounds=3", "seed=1", "strategy=fedmrn"],
        ["rounds=3", "seed=1", "strategy=fedavg"],
    ]
    assert open_sweep(["seed=range(2)"]).runs == [["seed=0"], ["seed=1"]]
    assert open_sweep(["strategy=glob(fedm*)"]).runs == [["strategy=fedmrn"], ["strategy=fedmrns"]]


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
    for text in ("[1]", "seed='1", "[" * 100_000):
        with pytest.raises(ConfigError) as refusal:
            parse_overrides(text)
        assert (refusal.value.code, refusal.value.key) == ("format", "overrides")


@pytest.mark.parametrize("path", ["/tmp/a", "/tmp/one \u00fc", "/a'b/(c),d=e", "/a\\'b$HOME"])
def test_an_override_is_typed_in_a_shell(path: str) -> None:
    (word,) = shlex.split(typed_override("hydra.run.dir", path))
    assert OverridesParser.create().parse_override(word).value() == path


def test_an_override_without_special_characters_is_typed_as_it_is() -> None:
    assert typed_override("hydra.run.dir", "/tmp/a-1.b_2") == "hydra.run.dir=/tmp/a-1.b_2"


@pytest.mark.parametrize(
    "overrides",
    [
        ("model=mlp", "model.hidden=[8192,4096]"),
        ("dataset=shakespeare", "model=char_lstm", "model.units=1300"),
        ("dataset=own", "dataset.form=ids", "dataset.window=10", "dataset.vocabulary=600000", "dataset.classes=3",
         "model=word_average", "evaluation.on=clients"),
    ],
    ids=["mlp", "char_lstm", "word_average"],
)  # fmt: skip
def test_large_models_are_tried_without_memory(overrides: tuple[str, ...]) -> None:
    config = load_config(overrides)
    with torch.device("meta"):
        module = build_module(config, build_task(config))
    assert sum(weights.numel() for weights in module.parameters()) > 1 << 24
