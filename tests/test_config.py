"""Every configuration there is composes; every wrong one is refused in a line that names key, value and way out."""

import json
import re

import pytest

from fedmrn_app.config import CONF, GROUPS, Config, load_config, parse_overrides, quote_override
from fedmrn_app.errors import ConfigError

CHOICES = [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]


def test_default_is_fedmrn_on_digits() -> None:
    config = load_config(())
    assert (config.strategy["name"], config.dataset.name, config.partition.name) == ("fedmrn", "digits", "iid")
    assert (config.clients, config.noise.distribution, config.noise.alpha) == (10, "uniform", 0.01)


@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_every_choice_composes(group: str, name: str) -> None:
    images = ["dataset=cifar10"] if group == "model" and name != "digits" else []
    config = load_config((*images, f"{group}={name}"))
    assert isinstance(config, Config)


@pytest.mark.parametrize("experiment", [name for group, name in CHOICES if group == "experiment"])
@pytest.mark.parametrize("strategy", [name for group, name in CHOICES if group == "strategy"])
def test_every_experiment_takes_every_strategy(experiment: str, strategy: str) -> None:
    config = load_config((f"experiment={experiment}", f"strategy={strategy}"))
    assert config.strategy["name"] == strategy
    if not experiment.startswith(("fedscalar", "submodel")):
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


def test_command_line_wins_over_strategy_and_experiment() -> None:
    config = load_config(("noise.alpha=0.5", "local.lr=7", "experiment=fmnist_iid", "strategy=fedmrns", "rounds=3"))
    assert (config.noise.alpha, config.local.lr, config.rounds) == (0.5, 7, 3)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["foo=1"], "foo=1: unknown key; the configuration has: client_cpus, "),
        (["local.epoch=1"], "local.epoch=1: unknown key, did you mean epochs?; local has: batch_size, epochs, lr"),
        (["+local.extra=1"], "unknown key"),
        (["partition.alpha=1"], "partition.alpha=1: unknown key; partition has: name"),
        (
            ["strategy=fedmrm"],
            "strategy=fedmrm: no such choice, did you mean fedmrn?; allowed: drive, eden, ",
        ),
        (["dataset=mnist"], "dataset=mnist: no such choice"),
        (["strategy=fedmrn,fedavg"], "strategy=fedmrn,fedavg: several values are a sweep, which needs --multirun"),
        (["seed=1,2"], "seed=1,2: several values are a sweep"),
        (["strategy.masking=all"], "strategy.masking=all: must be one of psm, sm, pm, dm, post_sm"),
        (["clients_per_round=11"], "clients_per_round=11: must be from 1 to clients=10"),
        (["clients=5"], "clients_per_round=10: must be from 1 to clients=5"),
        (["rounds=0"], "rounds=0: must be at least 1"),
        (["rounds=ten"], "rounds=ten: must be a whole number"),
        (["rounds=1.5"], "rounds=1.5: must be a whole number"),
        (["rounds=true"], "rounds=True: must be a whole number"),
        (["rounds=null"], "rounds=None: must be a whole number"),
        (["resume=1"], "resume=1: must be true or false"),
        (["precision=float16"], "precision=float16: must be one of float32, bfloat16"),
        (["device=tpu"], "device=tpu: must be one of auto, cpu, cuda"),
        (["noise.alpha=0"], "noise.alpha=0.0: must be above 0"),
        (["noise.alpha=-0.1"], "noise.alpha=-0.1: must be above 0"),
        (["noise.alpha=nan"], "noise.alpha=nan: must be above 0"),
        (["noise.distribution=cauchy"], "noise.distribution=cauchy: must be one of uniform, gaussian, bernoulli"),
        (["local.lr=0"], "local.lr=0.0: must be above 0"),
        (["local.batch_size=0"], "local.batch_size=0: must be at least 1"),
        (["seed=-1"], "seed=-1: must be in [0, 2^56)"),
        (["partition=dirichlet", "partition.alpha=0"], "partition.alpha=0.0: must be above 0"),
        (
            ["partition=label_shard", "partition.labels_per_client=11"],
            "partition.labels_per_client=11: must be from 1 to 10, the labels of digits",
        ),
        (
            ["partition=label_shard", "clients=3", "clients_per_round=3"],
            "clients=3: must be at least 4, so that clients of 3 labels cover the 10 of digits",
        ),
        (["model=cnn4"], "model.name=cnn4: does not fit images of 1x8x8 (4 pools leave nothing of 8x8 pixels)"),
        (["model=mlp", "model.hidden=[wide]"], "model.name=mlp: does not fit images of 1x8x8"),
        (["dataset.path"], "Error parsing override 'dataset.path'"),
    ],
)
def test_refused_in_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_config(tuple(overrides))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "path",
    ["/plain", "/with space/and 'quotes'", 'a="b",c=[d]', "back\\slash", "end\\", "\\'both\\\\'", "ünïcode", "${x}$"],
)
def test_any_path_survives(path: str) -> None:
    overrides = (quote_override("dataset.path", path), "seed=4")
    assert parse_overrides(json.dumps(overrides)) == overrides
    if "${" not in path:  # OmegaConf's interpolation, which no quoting turns off
        assert load_config(overrides).dataset.path == path


def test_overrides_of_people() -> None:
    assert parse_overrides("") == ()
    assert parse_overrides("strategy=fedavg  rounds=3 dataset.path='a b'") == (
        "strategy=fedavg",
        "rounds=3",
        "dataset.path=a b",
    )
    with pytest.raises(ConfigError, match="strings only"):
        parse_overrides("[1]")
