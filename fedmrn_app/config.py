"""`conf/` and a list of Hydra overrides -> one checked `Config`, the same on server and client."""

from __future__ import annotations

import difflib
import json
import math
import re
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import nn

from fedmrn_app.data.partitions import PartitionConfig
from fedmrn_app.data.sets import DatasetConfig
from fedmrn_app.errors import ConfigError
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.models import MODELS, build_model
from fedmrn_app.learning.sgd import Precision
from fedmrn_app.methods import Method, Noise, build_method
from fedmrn_app.noise import MAX_ALPHA, MIN_ALPHA, derive_seed
from fedmrn_app.wire.body import Coder
from fedmrn_app.wire.dense import DENSE_BITS
from fedmrn_app.wire.downlink import DownlinkDtype

CONF = Path(__file__).resolve().parents[1] / "conf"
GROUPS = ("dataset", "partition", "model", "noise", "strategy", "experiment")

_hydra_lock = threading.Lock()  # Hydra composes in global state, and a ServerApp runs beside other threads


@dataclass(frozen=True)
class LocalConfig:
    """Local training of one client in one round."""

    epochs: int
    batch_size: int
    lr: float
    steps: int | None = None  # instead of epochs
    weight_decay: float = 0.0


@dataclass(frozen=True)
class UplinkConfig:
    """How clients write what they upload."""

    coder: Coder
    dense_bits: int


@dataclass(frozen=True)
class DownlinkConfig:
    """How the server writes the global vector."""

    dtype: DownlinkDtype


@dataclass(frozen=True)
class Config:
    """One run. `model` and `strategy` hold `name` and that model's or method's own options."""

    rounds: int
    clients: int
    clients_per_round: int
    seed: int
    precision: Precision
    device: Literal["auto", "cpu", "cuda"]
    client_cpus: int
    client_gpus: float
    round_timeout: float
    node_timeout: float
    resume: bool
    evaluate_train: bool
    uplink: UplinkConfig
    downlink: DownlinkConfig
    local: LocalConfig
    dataset: DatasetConfig
    partition: PartitionConfig
    model: Mapping[str, Any]
    strategy: Mapping[str, Any]
    noise: Noise

    def build_method(self) -> Method:
        """Return the method of this run."""
        options = {key: value for key, value in self.strategy.items() if key != "name"}
        seed = derive_seed(self.seed, "frozen")
        return build_method(self.strategy["name"], options, self.noise, seed, self.uplink.coder, self.downlink.dtype)

    def build_flat_model(self, width: float = 1.0) -> FlatModel:
        """Return a new model on the run's device with the run's initial weights, or a narrower one."""
        return FlatModel(self.build_module(width), self.torch_device(), whole=self.build_method().whole_model)

    def build_module(self, width: float = 1.0) -> nn.Module:
        """Return the module of `build_flat_model`."""
        options = {key: value for key, value in self.model.items() if key != "name"}
        return build_model(self.model["name"], self.dataset.shape, derive_seed(self.seed, "model"), width, **options)

    def torch_device(self) -> torch.device:
        """Return the device of training and evaluation here; `auto` is a GPU where there is one.

        Raises:
            ConfigError: `cuda` is asked for and not there.
        """
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device=cuda: PyTorch finds no GPU here; take device=cpu, or give clients client_gpus")
        name = ("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else self.device
        return torch.device(name)


def parse_overrides(text: str) -> tuple[str, ...]:
    """Split the `overrides` of a run_config: a JSON list, or words separated by spaces as in a shell."""
    if not text.lstrip().startswith("["):
        return tuple(shlex.split(text))
    words = json.loads(text)
    if not all(isinstance(word, str) for word in words):
        raise ConfigError(f"overrides={text}: a JSON list must hold strings only")
    return tuple(words)


@lru_cache(maxsize=4)
def load_config(overrides: tuple[str, ...]) -> Config:
    """Compose and check the configuration.

    Raises:
        ConfigError: in one line that names the key, the value and what is allowed.
    """
    values = compose_values(overrides)
    config: Config = _build(Config, values, "")
    _check(config)
    return config


def compose_values(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose `conf/` with overrides into plain nested values, unknown keys and choices refused."""
    if not CONF.is_dir():
        raise ConfigError(f"{CONF}: no such folder; install the project from its checkout with pip install -e .")
    with _own_hydra():
        try:
            parsed = OverridesParser.create().parse_overrides(list(overrides))
            for override in parsed:
                _check_choice(override)
            # experiments and strategies may bring keys, so keys are checked against the composed choices
            choices = [text for text, o in zip(overrides, parsed, strict=True) if _is_choice(o)]
            known = OmegaConf.to_container(compose("config", choices))
            for override in parsed:
                _check_key(override, known)
            return _plain(OmegaConf.to_container(compose("config", list(overrides)), resolve=True))
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(" ".join(str(error).split())) from error


@contextmanager
def _own_hydra() -> Iterator[None]:
    """Hydra with our `conf/`, whatever instance of it may be active, as inside the `fedmrn` command."""
    with _hydra_lock:
        outer = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        try:
            with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
                yield
        finally:
            GlobalHydra.instance().hydra = outer


def quote_override(key: str, value: str) -> str:
    """Return `key='value'` so that Hydra reads any characters of the value as they are."""
    # Hydra takes a backslash literally unless a quote follows it
    escaped = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), value)
    return f"{key}='{escaped}'"


def _plain(container: Any) -> dict[str, Any]:
    assert isinstance(container, dict)
    return container


def _is_choice(override: Override) -> bool:
    return override.key_or_group in GROUPS


def _check_choice(override: Override) -> None:
    """Refuse an unknown file of a config group."""
    if not _is_choice(override) or override.is_delete():
        return
    _refuse_sweep(override)
    group, value = override.key_or_group, override.value()
    allowed = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    if value not in allowed and not (group == "experiment" and value is None):
        raise ConfigError(
            f"{group}={value}: no such choice{_nearest(str(value), allowed)}; allowed: {', '.join(allowed)}"
        )


def _refuse_sweep(override: Override) -> None:
    if override.is_sweep_override():
        raise ConfigError(f"{override.input_line}: several values are a sweep, which needs --multirun")


def _check_key(override: Override, known: Any) -> None:
    """Refuse a key that the composed configuration does not have."""
    if _is_choice(override) or override.is_hydra_override():
        return
    _refuse_sweep(override)
    node = known
    parts = override.key_or_group.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(node, dict) or part not in node:
            allowed = sorted(map(str, node)) if isinstance(node, dict) else []
            where = ".".join(parts[:depth]) or "the configuration"
            raise ConfigError(
                f"{override.input_line}: unknown key{_nearest(part, allowed)}; {where} has: {', '.join(allowed)}"
            )
        node = node[part]


def _nearest(word: str, allowed: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, allowed, 1)
    return f", did you mean {near[0]}?" if near else ""


def _build(kind: Any, value: Any, key: str) -> Any:
    """Turn plain values into the type `kind` says, refusing unknown keys and wrong types by their full name."""
    if is_dataclass(kind):
        return _build_dataclass(kind, value, key)
    if kind is Any:
        return value
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        if value not in arguments:
            raise ConfigError(f"{key}={value}: must be one of {', '.join(arguments)}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{key}={value}: must be a list of numbers")
        return tuple(_build(arguments[0], item, key) for item in value)
    if origin is not None and issubclass(origin if isinstance(origin, type) else object, Mapping):
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            raise ConfigError(f"{key}={value}: must be a choice with a name")
        return value
    if type(None) in arguments:
        return None if value is None else _build(next(a for a in arguments if a is not type(None)), value, key)
    return _scalar(kind, value, key)


def _build_dataclass(kind: Any, value: Any, key: str) -> Any:
    names = [field.name for field in fields(kind)]
    prefix = f"{key}." if key else ""
    if not isinstance(value, dict):
        raise ConfigError(f"{key}={value}: must have the keys {', '.join(names)}")
    for name in value:
        if name not in names:
            raise ConfigError(
                f"{prefix}{name}={value[name]}: unknown key; {key or 'the configuration'} has: {', '.join(names)}"
            )
    hints = get_type_hints(kind)
    try:
        return kind(**{name: _build(hints[name], item, f"{prefix}{name}") for name, item in value.items()})
    except TypeError as error:
        raise ConfigError(f"{key or 'configuration'}: {error}") from error


def _scalar(kind: Any, value: Any, key: str) -> Any:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{key}={value}: must be {words[kind]}")
    return value


def _check(config: Config) -> None:
    """Refuse values out of range and combinations that cannot run."""
    _require(1 <= config.rounds < 1 << 32, "rounds", config.rounds, "at least 1")
    _require(1 <= config.clients < 1 << 32, "clients", config.clients, "at least 1")
    _require(
        1 <= config.clients_per_round <= config.clients,
        "clients_per_round",
        config.clients_per_round,
        f"from 1 to clients={config.clients}",
    )
    _require(0 <= config.seed < 1 << 56, "seed", config.seed, "in [0, 2^56)")
    _require(config.client_cpus >= 1, "client_cpus", config.client_cpus, "at least 1")
    _require(0 <= config.client_gpus < math.inf, "client_gpus", config.client_gpus, "0 or more")
    for key in ("round_timeout", "node_timeout"):
        _require(0 < getattr(config, key) < math.inf, key, getattr(config, key), "above 0 seconds")
    _require(config.local.epochs >= 1, "local.epochs", config.local.epochs, "at least 1")
    steps = config.local.steps
    _require(steps is None or steps >= 1, "local.steps", steps, "at least 1, or null for whole epochs")
    _require(config.local.batch_size >= 1, "local.batch_size", config.local.batch_size, "at least 1")
    _require(0 < config.local.lr < math.inf, "local.lr", config.local.lr, "above 0")
    bits = config.uplink.dense_bits
    _require(bits in DENSE_BITS, "uplink.dense_bits", bits, f"one of {', '.join(map(str, DENSE_BITS))}")
    decay = config.local.weight_decay
    _require(0 <= decay < math.inf, "local.weight_decay", decay, "0 or more")
    alpha = config.noise.alpha
    _require(MIN_ALPHA <= alpha <= MAX_ALPHA, "noise.alpha", alpha, f"above 0, from {MIN_ALPHA} to {MAX_ALPHA}")
    _check_partition(config)
    _require(config.model["name"] in MODELS, "model.name", config.model["name"], f"one of {', '.join(MODELS)}")
    width = min(config.build_method().widths)
    with torch.device("meta"):  # takes no memory: a client may have too little for the full model
        config.build_module()
        statistics = list(config.build_module(width).buffers())
    config.torch_device()
    if width < 1 and statistics:
        raise ConfigError(
            f"model.name={config.model['name']}: running statistics of narrower models cannot be averaged; "
            f"take model=preact_resnet18, or model=cnn4 or another with model.norm=static"
        )


def _check_partition(config: Config) -> None:
    partition, classes = config.partition, config.dataset.classes
    if partition.name == "dirichlet":
        alpha = partition.alpha or 0.0
        _require(0 < alpha < math.inf, "partition.alpha", partition.alpha, "above 0")
    if partition.name == "label_shard":
        labels = partition.labels_per_client or 0
        name = config.dataset.name
        _require(
            1 <= labels <= classes,
            "partition.labels_per_client",
            partition.labels_per_client,
            f"from 1 to {classes}, the labels of {name}",
        )
        _require(
            config.clients * labels >= classes,
            "clients",
            config.clients,
            f"at least {-(-classes // labels)}, so that clients of {labels} labels cover the {classes} of {name}",
        )


def _require(condition: bool, key: str, value: object, allowed: str) -> None:
    if not condition:
        raise ConfigError(f"{key}={value}: must be {allowed}")
