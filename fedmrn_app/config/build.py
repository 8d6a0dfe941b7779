"""From a configuration to the objects of a run: task, method, model and device. What cannot be built is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedmrn_app import validation
from fedmrn_app.config.checks import check_data, check_layers, check_rounds, check_saving, check_weights, refuse
from fedmrn_app.config.evaluation_checks import check_evaluation
from fedmrn_app.config.privacy_checks import check_privacy, check_secure_settings
from fedmrn_app.config.schema import Config, Values
from fedmrn_app.config.targets import OWN_TARGETS, TARGET, locate
from fedmrn_app.data.partition import Partition, StoredPartition
from fedmrn_app.data.partitions import load_partitions
from fedmrn_app.data.place import first_line
from fedmrn_app.errors import ConfigError, FedMRNError
from fedmrn_app.federation.budget import Budget
from fedmrn_app.federation.client_rows import ClientRows
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.federation.upload import least_reply_bits, most_reply_bits
from fedmrn_app.federation.worker import RunSettings, Worker
from fedmrn_app.learning.flat import FlatModel, trained_parameters
from fedmrn_app.learning.models.build import build_model, has_batch_norm, refuses_one_row, sketch_model
from fedmrn_app.learning.sgd import emulates_bfloat16
from fedmrn_app.methods import build_method
from fedmrn_app.methods.method import Method, RunOptions
from fedmrn_app.methods.rate_control import SCALE_LIMIT, error_power
from fedmrn_app.seeds import derive_seed
from fedmrn_app.system.cores import memory as memory_limit
from fedmrn_app.tasks import find_tasks
from fedmrn_app.tasks.task import Report, Task
from fedmrn_app.tasks.validation import load_training
from fedmrn_app.validation import refusal

_LARGE = 1 << 24  # weights of a model that is tried without memory


def find_conf() -> Path:
    """Return the folder `conf/`: in the installed package, or beside it in a checkout.

    Raises:
        ConfigError: the folder does not exist.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise ConfigError(f"{package / 'conf'}: no such folder; install the project with pip install .", code="install")


def parse_config(values: Mapping[str, Any]) -> Config:
    """Type plain values. For values that were checked elsewhere; `read_config` checks them too.

    Raises:
        ConfigError: a key is unknown or missing, or a value has another type or is out of range.
    """
    return validation.build(Config, values)


def read_config(values: Mapping[str, Any]) -> Config:
    """Type plain values and check them; a process checks the same values once.

    Raises:
        ConfigError: in one line that names the key, the value and what is allowed.
    """
    return _read(json.dumps(values, default=str))


@lru_cache(maxsize=8)
def _read(text: str) -> Config:
    config = parse_config(json.loads(text))
    check(config)
    return config


def check(config: Config) -> None:
    """Refuse combinations that cannot run. Nothing is read or started for it."""
    check_secure_settings(config)
    task, method = build_task(config), build_run_method(config)
    loggers = sorted(path.stem for path in (find_conf() / "log").glob("*.yaml"))
    if config.log.name not in loggers:
        raise refusal("log.name", config.log.name, f"must be one of {', '.join(loggers)}", "choice")
    check_rounds(config, method)
    check_weights(config, method)
    check_saving(config, method)
    check_privacy(config, method)
    torch_device(config)
    check_data(config, task, method)
    check_evaluation(config, method)
    if not task.inputs():
        return  # the data will tell
    if names_own_model(config):
        _check_model(build_module(config, task), config, method)
        return
    _check_model(_tried(config, task), config, method)
    width = min(method.selection.widths)
    statistics = width < 1 and any(True for _ in _tried(config, task, width).buffers())
    other_weights = "narrower models have other first weights to start from; take float32"
    averaged = (
        "running statistics of narrower models cannot be averaged; take model=preact_resnet18, or model=cnn4 or "
        "another with model.norm=static"
    )
    narrow = [
        (width < 1 and config.downlink.on_lattice, "downlink.dtype", other_weights),
        (width < 1 and statistics, model_key(config), averaged),
    ]
    refuse(config, narrow)


def _tried(config: Config, task: Task, width: float = 1.0) -> nn.Module:
    """Return the module after a trial, without memory if it is large: a client may train a narrower one only."""
    sketch = sketch_model(lambda: build_module(config, task, width, trial=False))
    if sum(weights.numel() for weights in sketch.parameters()) <= _LARGE:
        return build_module(config, task, width)
    with torch.device("meta"):  # such a trial imports PyTorch's compiler, which takes seconds
        return build_module(config, task, width)


def check_node(config: Config) -> None:
    """Refuse what a node alone can know: that its device is missing, or that its copy of the model's code fails."""
    torch_device(config)
    if names_own_model(config):
        build_module(config, build_task(config))


def names_own_model(config: Config) -> bool:
    """Return whether the model is code of the user's own."""
    return TARGET in config.model and not str(config.model[TARGET]).startswith(OWN_TARGETS)


def build_task(config: Config) -> Task:
    """Return what the run learns: a task of the user's own code, or that of the data set."""
    return task_of(config.task, config.dataset)


def task_of(own: Mapping[str, Any], dataset: Mapping[str, Any]) -> Task:
    """Return the task that the groups `task` and `dataset` of a configuration describe.

    Raises:
        ConfigError: there is no such task, or it refuses an option.
    """
    target = own.get(TARGET)
    if target is None:
        tasks, name = find_tasks(), dataset.get("task")
        if name not in tasks:
            raise refusal("dataset.task", name, f"must be one of {', '.join(tasks)}", "choice")
        return validation.build(tasks[name], dataset, "dataset")
    kind: Any = locate(target, "task")
    task: Task = validation.build(kind, {key: value for key, value in own.items() if key != TARGET}, "task")
    return task


def build_run_method(config: Config) -> Method:
    """Return the method of the run."""
    budget = config.uplink.budget
    bits = config.uplink.bits if budget is None else budget if isinstance(budget, float | int) else math.nan
    run = RunOptions(
        noise=config.noise,
        seed=derive_seed(config.seed, "frozen"),
        coder=config.uplink.coder,
        downlink=config.downlink.dtype,
        bits=bits,
        randomized_response=config.privacy.randomized_response,
        rounds=config.rounds,
        clients=config.clients,
        secure=config.privacy.secure_aggregation,
        budget=budget,
    )
    options = {key: value for key, value in config.strategy.items() if key != "name"}
    method = build_method(str(config.strategy.get("name")), options, run)
    fixed = f"{method.name} has no noise whose scale could be set; set uplink.bits=null"
    key = "uplink.bits" if budget is None else "uplink.budget"
    packed = f"uplink.coder=packed is a bit per weight; set {key}=null"
    unsized = (
        f"replies of {method.name} have a size that the server cannot set; set uplink.budget=null, or take "
        "strategy=fedmrn, fedmrns, quantized, topk or fedsparsify"
    )
    unknown = "how many rounds a client takes part in is not known with server=async; set bits per parameter"
    sized = method.rate_control is not None or method.codec.takes_size
    conflicts = [
        (budget is not None and not sized, "uplink.budget", unsized),
        (config.uplink.megabytes is not None and config.server == "async", "uplink.budget", unknown),
        (budget is None and bits is not None and method.rate_control is None, "uplink.bits", fixed),
        (bits is not None and config.uplink.coder == "packed", key, packed),
    ]
    refuse(config, conflicts)
    return method


def _run_budget(config: Config, model: FlatModel) -> Budget | None:
    """Return the budget of the run in bits per parameter of a reply; None without one."""
    bits, megabytes = config.uplink.budget, config.uplink.megabytes
    if bits is None:
        return None
    if megabytes is not None:  # of a client, which takes part in some of the rounds
        replies = config.rounds * config.clients_per_round / config.clients
        bits = 8e6 * megabytes / replies / model.parameter_count
    rounds = 0 if config.server == "async" else config.rounds
    return Budget(float(bits), config.uplink.schedule, rounds)


def build_module(config: Config, task: Task, width: float = 1.0, *, trial: bool = True) -> nn.Module:
    """Return a new module with the run's initial weights.

    Args:
        config: of the run.
        task: what the model learns.
        width: the share of its channels that the module has.
        trial: whether to try it on an example.

    Raises:
        ConfigError: the model does not exist, or does not fit the data.
    """
    options = {key: value for key, value in config.model.items() if key not in ("name", TARGET)}
    if TARGET not in config.model:
        raise refusal("model", "default", "no default model fits these data; set model=NAME or model=own", "missing")
    target, label = locate(config.model[TARGET], "model"), model_label(config)
    try:
        return build_model(
            target, options, task, derive_seed(config.seed, "model"), width=width, name=label, trial=trial
        )
    except FedMRNError:
        raise
    except BaseException as error:  # the model's code may raise anything
        reason = f"cannot be built ({type(error).__name__}: {first_line(error)})"
        raise ConfigError(f"{label}: {reason}", code="target", key=model_key(config)) from error


def check_single_rows(config: Config, task: Task, partition: Partition) -> None:
    """Refuse a model that cannot be trained on one row, where clients have no more.

    Raises:
        ConfigError: names the number of such clients and the way out.
    """
    if not isinstance(partition, StoredPartition) or not (single := int((partition.sizes() == 1).sum())):
        return
    if refuses_one_row(build_module(config, task, trial=False), task):
        way = {"dirichlet": "partition.min_rows=2", "natural": "partition.min_samples=2"}.get(config.partition.name)
        problem = f"{single} of {len(partition)} clients have one row, and batch norm needs two; "
        raise ConfigError(
            f"partition={config.partition.name}: {problem}{f'set {way}' if way else 'take fewer clients'}, or take "
            "model=mlp or another without batch norm",
            code="single-row", key="partition", value=config.partition.name,
        )  # fmt: skip


def build_flat_model(config: Config, task: Task, method: Method, width: float = 1.0) -> FlatModel:
    """Return `build_module` on the run's device, with its weights in the method's order."""
    module = build_module(config, task, width)
    _check_model(module, config, method)
    return FlatModel(module, torch_device(config), whole=method.whole_model, static=not names_own_model(config))


def build_protocol(config: Config, method: Method, model: FlatModel) -> RunProtocol:
    """Return the run's protocol for a model that holds its initial weights."""
    budget = _run_budget(config, model)
    protocol = RunProtocol.of(
        method,
        model,
        seed=config.seed,
        dense_bits=config.uplink.dense_bits,
        lattice_step=config.downlink.step,
        max_norm=config.uplink.max_norm,
        equal_weights=config.equal_weights,
        scale_limit=math.inf if has_batch_norm(model.module) else SCALE_LIMIT,
        **config.server_settings(),
    )
    if budget is None:
        return protocol
    beside = protocol.bits_beside / protocol.parameters
    if method.rate_control is None:
        return replace(protocol, budget=replace(budget, beside=beside, least=beside))
    least, power = least_reply_bits(protocol), error_power()
    longest = most_reply_bits(protocol, signed=method.rate_control.signed)
    budget = replace(budget, beside=beside, least=least, longest=longest, power=power, masks=True)
    return replace(protocol, budget=budget)


def build_worker(config: Config, data_path: str | None = None) -> Worker:
    """Return a worker for a configuration with no value left open.

    Args:
        config: the configuration.
        data_path: place of this device's own samples, which are those of its only client; None for the run's data set.
    """
    task, method = build_task(config), build_run_method(config)
    own_test = None
    if data_path is not None:
        task = task.local(data_path)
        samples, partition = task.load("train"), None
        own_test = task.own_test_rows() if config.evaluation.by_clients else None
    else:
        samples = load_training(task, config.validation, config.seed)
        seed = derive_seed(config.seed, "partition")
        partition = load_partitions(samples, config.partition, config.clients, seed, task.name)

    def build_model(width: float) -> tuple[FlatModel, RunProtocol]:
        model = build_flat_model(config, task, method, width)
        return model, build_protocol(config, method, model)

    settings = RunSettings(
        seed=config.seed,
        rounds=config.rounds,
        clients=config.clients,
        clients_per_round=config.clients_per_round,
        client_cpus=config.client_cpus,
        precision=config.precision,
        local=config.local,
        keeps_versions=config.downlink.remembers,
        secure=config.privacy.secure_aggregation,
        evaluates=config.evaluation.by_clients,
        least_summands=config.least_summands,
        least_tallies=config.least_tallies,
    )
    rows = ClientRows(samples, partition, share=config.evaluation.holdout, seed=config.seed, own_test=own_test)
    return Worker(settings, task, method, rows=rows, build_model=build_model)


def _check_model(module: nn.Module, config: Config, method: Method) -> None:
    count, memory = sum(weights.numel() for weights in module.parameters()), memory_limit()
    if 4 * count > memory:
        reason = f"has {count:,} weights, {4 * count >> 30:,} GiB, and this process may use {memory >> 30} GiB"
        raise ConfigError(f"{model_label(config)}: {reason}; take a smaller one", code="model", key=model_key(config))
    try:
        trained_parameters(module, whole=method.whole_model)
    except ValueError as error:
        raise ConfigError(f"{model_label(config)}: {error}", code="model", key=model_key(config)) from error
    check_layers(config, module, model_label(config))


def model_key(config: Config) -> str:
    """Return the key that names the model: `model.name`, or `model._target_` for code of the user's own."""
    return f"model.{TARGET}" if config.model.get("name", "own") == "own" else "model.name"


def model_label(config: Config) -> str:
    """Return the model's name in errors."""
    key = model_key(config)
    return f"{key}={config.model.get(key.removeprefix('model.'))}"


def torch_device(config: Config) -> torch.device:
    """Return the device of training and evaluation on this machine; `auto` is a GPU if PyTorch finds one.

    Raises:
        ConfigError: the device is `cuda`, and PyTorch finds no GPU.
    """
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        reason = "PyTorch finds no GPU here; take device=cpu, or give clients client_gpus"
        raise refusal("device", config.device, reason, "device")
    return torch.device(("cuda" if available else "cpu") if config.device == "auto" else config.device)


def precision_remark(config: Config) -> str | None:
    """Return a line for the log where the run's precision is slow on this machine, or None."""
    if config.precision == "float32" or not emulates_bfloat16(torch_device(config)):
        return None
    return (
        f"precision={config.precision}: this processor has no instructions for it, and PyTorch's emulation can "
        "take ten times as long as precision=float32"
    )


def resolve_from_data(values: Values, report: Report | None = None) -> tuple[Values, Config, Task]:
    """Read from the data what the configuration leaves open, and check the result.

    Returns:
        The values with nothing left open, which can travel to other machines, the same as a `Config`, and its task.

    Raises:
        ConfigError: the data and the configuration do not fit.
        DataError: the data cannot be read.
    """
    task = task_of(values["task"], values["dataset"])
    measured = task.measured(report)
    values = dict(values)
    if measured is not task and is_dataclass(measured):
        group = "task" if TARGET in values["task"] else "dataset"
        values[group] = {**values[group], **json.loads(json.dumps(asdict(measured)))}
    if values["model"].get("name") == "default":
        values["model"] = default_model(measured)
    return values, read_config(values), measured


def default_model(task: Task) -> Values:
    """Return the values of the file in conf/model/ that `model=default` stands for with this task.

    Raises:
        ConfigError: there is no such file.
    """
    from omegaconf import OmegaConf

    name = task.model_name()
    if name is None:
        return {"name": "default"}
    path = find_conf() / "model" / f"{name}.yaml"
    if not path.is_file():
        allowed = sorted(other.stem for other in path.parent.glob("*.yaml"))
        reason = f"no such model{validation.nearest(name, allowed)}; there are {', '.join(allowed)}"
        raise refusal("dataset.model", name, reason, "choice")
    values: Values = OmegaConf.to_container(OmegaConf.load(path))  # type: ignore[assignment]
    return {**values, **task.model_options()}


def default_partition(task: Task | None, values: Values) -> Values:
    """Return the values of the file in conf/partition/ that `partition=default` stands for with this task.

    Where `values` of the partition set the number of rows that each client draws, it is `iid` in any case.
    """
    from omegaconf import OmegaConf

    drawn = values.get("samples_per_client")
    name = "natural" if task is not None and task.has_groups() and drawn is None else "iid"
    found: Values = OmegaConf.to_container(OmegaConf.load(find_conf() / "partition" / f"{name}.yaml"))  # type: ignore[assignment]
    return found if drawn is None else {**found, "samples_per_client": drawn}


measure = resolve_from_data  # the function's former name
