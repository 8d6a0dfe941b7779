"""From a configuration to the objects of a run: task, method, model, device. What cannot be built is refused here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedmrn_app import validation as typed
from fedmrn_app.config.learning_checks import check_labels, check_norms
from fedmrn_app.config.privacy_checks import check_privacy, check_statistics
from fedmrn_app.config.round_checks import check_rounds
from fedmrn_app.config.schema import Config, Values
from fedmrn_app.data.partitions import load_partitions
from fedmrn_app.errors import ConfigError
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.federation.worker import Worker
from fedmrn_app.learning.flat import FlatModel, trained_parameters
from fedmrn_app.learning.models.build import build_model
from fedmrn_app.methods import build_method
from fedmrn_app.methods.method import Method, RunOptions
from fedmrn_app.methods.submodel_selection import SubmodelSelector
from fedmrn_app.seeds import derive_seed
from fedmrn_app.tasks import find_tasks
from fedmrn_app.tasks.task import Report, Task
from fedmrn_app.tasks.validation import load_training

TARGET = "_target_"  # Hydra's key for a function or class
OWN_TARGETS = ("fedmrn_app.learning.models.", "fedmrn_app.tasks.")  # what a configuration may name anywhere
_SHIPPED_MODELS = "model.name"


def find_conf() -> Path:
    """The folder `conf/`: in the installed package, or beside it in a checkout.

    Raises:
        ConfigError: there is none.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise ConfigError(f"{package / 'conf'}: no such folder; install the project with pip install .")


def read_config(values: Mapping[str, Any]) -> Config:
    """Type and check plain values; see `check` for what is checked.

    Raises:
        ConfigError: in one line that names the key, the value and what is allowed.
    """
    config = typed.build(Config, values)
    check(config)
    return config


def check(config: Config) -> None:
    """Refuse combinations that cannot run; nothing is read or started for it."""
    task, method = build_task(config), build_run_method(config)
    _check_memory(config, method)
    check_rounds(config, method)
    check_privacy(config, method)
    torch_device(config)
    check_labels(config, task)
    if not task.inputs():
        return  # what is to be read from the data is not known yet
    _check_partition(config, task)
    if TARGET in config.model and not config.model[TARGET].startswith(OWN_TARGETS):
        _check_weights(build_module(config, task), config, method)
        return
    with torch.device("meta"):  # takes no memory: a client may have too little for the full model
        _check_weights(build_module(config, task), config, method)
        width = min(method.selection.widths)
        statistics = list(build_module(config, task, width).buffers())
    if width < 1 and config.downlink.dtype == "grid":
        raise ConfigError("downlink.dtype=grid: narrower models have other first weights to start from; take float32")
    if width < 1 and statistics:
        raise ConfigError(
            f"{model_label(config)}: running statistics of narrower models cannot be averaged; "
            "take model=preact_resnet18, or model=cnn4 or another with model.norm=static"
        )


def _check_memory(config: Config, method: Method) -> None:
    if config.downlink.remembers and type(method.selection) is not SubmodelSelector:
        raise ConfigError(
            f"downlink.memory=true: strategy={method.name} sends each client other weights; say downlink.memory=false"
        )


def check_gpus(config: Config) -> None:
    """Refuse shares of GPUs that this machine, which is to simulate, does not have."""
    gpus = torch.cuda.device_count()
    if config.client_gpus > gpus:
        there = f"must be at most {gpus}, the GPUs of this machine" if gpus else "PyTorch finds no GPU here"
        raise ConfigError(f"client_gpus={config.client_gpus:g}: {there}; say client_gpus=0 to train on CPUs")


def _check_partition(config: Config, task: Task) -> None:
    classes = task.inputs().get("classes")
    labels = config.partition.labels_per_client
    if config.partition.name != "label_shard" or labels is None or classes is None:
        return
    if labels > classes:
        raise ConfigError(
            f"partition.labels_per_client={labels}: must be from 1 to {classes}, the labels of {task.name}"
        )
    if config.clients * labels < classes:
        raise ConfigError(
            f"clients={config.clients}: must be at least {-(-classes // labels)}, so that clients of {labels} labels "
            f"cover the {classes} of {task.name}"
        )


def build_task(config: Config) -> Task:
    """Return what the run learns: a task of one's own, or that of the data set."""
    if TARGET in config.task:
        options = {key: value for key, value in config.task.items() if key != TARGET}
        kind = locate(config.task[TARGET], "task")
        if not (isinstance(kind, type) and issubclass(kind, Task)):
            raise ConfigError(f"task.{TARGET}={config.task[TARGET]}: must derive from fedmrn_app.tasks.task.Task")
        if is_dataclass(kind):
            return typed.build(kind, options, "task")
        return kind(**typed.check_call(kind, options, "task"))
    tasks, name = find_tasks(), config.dataset.get("task")
    if name not in tasks:
        raise ConfigError(f"dataset.task={name}: must be one of {', '.join(tasks)}")
    return typed.build(tasks[name], config.dataset, "dataset")


def build_run_method(config: Config) -> Method:
    """Return the method of the run."""
    options = {key: value for key, value in config.strategy.items() if key != "name"}
    seed = derive_seed(config.seed, "frozen")
    bits = config.uplink.bits
    coder, dtype, flips = config.uplink.coder, config.downlink.dtype, config.privacy.flips
    run = RunOptions(
        config.noise,
        seed,
        coder=coder,
        downlink=dtype,
        bits=bits,
        flips=flips,
        rounds=config.rounds,
        clients=config.clients,
    )
    method = build_method(str(config.strategy.get("name")), options, run)
    if bits is not None and method.steering is None:
        raise ConfigError(
            f"uplink.bits={bits:g}: {method.name} has no noise whose scale could be set; say uplink.bits=null"
        )
    if bits is not None and config.uplink.coder == "packed":
        raise ConfigError(f"uplink.bits={bits:g}: uplink.coder=packed is a bit per weight; say uplink.bits=null")
    return method


def build_module(config: Config, task: Task, width: float = 1.0) -> nn.Module:
    """Return a new module with the run's initial weights, or a narrower one.

    Raises:
        ConfigError: there is no such model, or it does not fit the data.
    """
    options = dict(config.model)
    options.pop("name", None)
    target = options.pop(TARGET, None)
    if target is None:
        raise ConfigError("model=default: there is no model for these data; say model=NAME or model=own")
    seed = derive_seed(config.seed, "model")
    return build_model(locate(target, "model"), options, task, seed, width=width, name=model_label(config))


def build_flat_model(config: Config, task: Task, method: Method, width: float = 1.0) -> FlatModel:
    """Return `build_module` on the run's device, its weights in the order that the method works on."""
    module = build_module(config, task, width)
    _check_weights(module, config, method)
    return FlatModel(module, torch_device(config), whole=method.whole_model)


def build_protocol(config: Config, method: Method, model: FlatModel) -> RunProtocol:
    """Return the run's protocol for a model that holds its initial weights."""
    return RunProtocol.of(
        method,
        model,
        seed=config.seed,
        dense_bits=config.uplink.dense_bits,
        grid_step=config.downlink.step,
        max_norm=config.uplink.max_norm,
        equal_weights=config.equal_weights,
        server_lr=config.server_lr,
    )


def build_worker(config: Config, data_path: str | None = None) -> Worker:
    """Return a worker for a configuration with no value left open.

    Args:
        config: the configuration.
        data_path: place of this device's own samples, which are those of its only client; None for the run's data set.
    """
    task, method = build_task(config), build_run_method(config)
    if data_path is not None:
        task = task.local(data_path)
        samples, partition = task.load("train"), None
    else:
        samples = load_training(task, config.validation, config.seed)
        seed = derive_seed(config.seed, "partition")
        partition = load_partitions(samples, config.partition, config.clients, seed, task.name)

    def build_model(width: float) -> tuple[FlatModel, RunProtocol]:
        model = build_flat_model(config, task, method, width)
        return model, build_protocol(config, method, model)

    return Worker(config, task, method, samples=samples, partition=partition, build_model=build_model)


def _check_weights(module: nn.Module, config: Config, method: Method) -> None:
    try:
        trained_parameters(module, whole=method.whole_model)
    except ValueError as error:
        raise ConfigError(f"{model_label(config)}: {error}") from error
    check_statistics(module, config, model_label(config))
    check_norms(module, config, model_label(config))


def model_label(config: Config) -> str:
    """What errors call the model."""
    name = config.model.get("name", "own")
    return f"model.{TARGET}={config.model.get(TARGET)}" if name == "own" else f"{_SHIPPED_MODELS}={name}"


def torch_device(config: Config) -> torch.device:
    """Return the device of training and evaluation here; `auto` is a GPU where there is one.

    Raises:
        ConfigError: `cuda` is asked for and not there.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda: PyTorch finds no GPU here; take device=cpu, or give clients client_gpus")
    name = ("cuda" if torch.cuda.is_available() else "cpu") if config.device == "auto" else config.device
    return torch.device(name)


def locate(target: str, group: str) -> Callable[..., Any]:
    """Import what a dotted path names.

    Raises:
        ConfigError: it cannot be imported, or cannot be called.
    """
    key = f"{group}.{TARGET}={target}"
    if target == "???":
        raise ConfigError(f"{group}.{TARGET}: is missing; say {group}.{TARGET}=my_package.module.Name")
    module, _, name = str(target).rpartition(".")
    if not module or not name:
        raise ConfigError(f"{key}: must be a dotted path, such as my_package.nets.Net; say {group}.{TARGET}=PATH")
    try:
        found = getattr(importlib.import_module(module), name)
    except AttributeError:
        raise ConfigError(f"{key}: the module {module} has no {name}") from None
    except Exception as error:  # whatever the module does when it is imported
        raise ConfigError(f"{key}: cannot import {module} ({type(error).__name__}: {error})") from error
    if not callable(found):
        raise ConfigError(f"{key}: is a {type(found).__name__}, not a class or function")
    result: Callable[..., Any] = found
    return result


def check_targets(values: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Refuse a configuration that names code outside what this node allows, before any of it is imported.

    Args:
        values: of the configuration.
        allowed: prefixes of dotted paths, beside the package's own models and tasks.

    Raises:
        ConfigError: names the target and the prefixes.
    """
    prefixes = (*OWN_TARGETS, *(prefix for prefix in allowed if prefix))
    for group in ("model", "task"):
        target = values.get(group, {}).get(TARGET)
        if target is None:
            continue
        if not any(str(target).startswith(prefix) for prefix in prefixes):
            raise ConfigError(
                f"{group}.{TARGET}={target}: this node runs code from {', '.join(prefixes)} only; its owner may allow "
                "more with allow-targets in the node's configuration"
            )
        if str(target).startswith(OWN_TARGETS):
            home = getattr(locate(target, group), "__module__", None)
            if not str(home).startswith(OWN_TARGETS):  # what a module of ours merely imports
                raise ConfigError(f"{group}.{TARGET}={target}: belongs to {home}, which this node does not run")


def resolve_from_data(values: Values, report: Report | None = None) -> tuple[Values, Config, Task]:
    """Read from the data what the configuration leaves to them, and fill it in, so that it travels.

    Returns:
        The values with nothing left open, their configuration, and its task.

    Raises:
        ConfigError: the data and the configuration do not go together.
        DataError: the data cannot be read.
    """
    config = typed.build(Config, values)
    task = build_task(config)
    measured = task.measured(report)
    values = dict(values)
    if measured is not task and is_dataclass(measured):
        group = "task" if TARGET in config.task else "dataset"
        values[group] = {**values[group], **_plain(asdict(measured))}
    if values["model"].get("name") == "default":
        values["model"] = default_model(measured)
    return values, read_config(values), measured


def default_model(task: Task) -> Values:
    """The values of the file in conf/model/ that `model=default` stands for; none where the task has none yet."""
    from omegaconf import OmegaConf

    name = task.model_name()
    if name is None:
        return {"name": "default"}
    path = find_conf() / "model" / f"{name}.yaml"
    if not path.is_file():
        allowed = sorted(other.stem for other in path.parent.glob("*.yaml"))
        raise ConfigError(
            f"dataset.model={name}: no such model{typed.nearest(name, allowed)}; there are {', '.join(allowed)}"
        )
    values: Values = OmegaConf.to_container(OmegaConf.load(path))  # type: ignore[assignment]
    return values


def _plain(value: Any) -> Any:
    """Tuples as lists, as YAML and JSON have them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
