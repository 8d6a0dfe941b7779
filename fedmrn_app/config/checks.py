"""Conflicts between values of a configuration that are fine by themselves. The first one that applies is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from fedmrn_app.config.schema import Config
from fedmrn_app.data.partitions import QUANTILES
from fedmrn_app.learning.evaluate import static_norms
from fedmrn_app.methods.method import Method
from fedmrn_app.methods.submodel_selection import SubmodelSelector
from fedmrn_app.tasks.classification import Classification
from fedmrn_app.tasks.labelled_rows import LabelledRows
from fedmrn_app.tasks.task import Task
from fedmrn_app.validation import refusal

Conflict = tuple[bool, str, str]  # whether it applies, the key at fault, and why, with a way out


def refuse(config: Config, conflicts: Iterable[Conflict]) -> None:
    """Refuse the first conflict that applies.

    Raises:
        ConfigError: names the key, its value and the way out.
    """
    for applies, key, reason in conflicts:
        if applies:
            raise refusal(key, value_of(config, key), reason)


def value_of(config: Config, key: str) -> Any:
    """Return the value of a dotted key; of a group such as `strategy`, the name of its choice."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part)
    return value.get("name") if isinstance(value, Mapping) else value


def check_rounds(config: Config, method: Method) -> None:
    """Refuse rounds that cannot work: too few clients, or a server that the method does not go with."""
    clients, drawn, private = config.clients, config.clients_per_round, config.privacy.noised
    updates, all_weights = method.server.averages_updates, type(method.selection) is SubmodelSelector
    asynchronous = config.server == "async"
    up_to_all = f"must be from 1 to clients={clients}"
    elsewhere = "this command trains here; `flwr run .` and `fedmrn --on` may use a Ray cluster, see docs/scale.md"
    replies = "in a private run who is in a round must not depend on who replies; set "
    other_weights = f"strategy={method.name} sends each client other weights; set downlink.memory=false"
    no_updates = f"{method.name} sends no updates of which the server could add more or less; set server_lr=1"
    in_order = "takes replies as they come; set oversample=1 min_replies=1"
    add_later = f"{method.name} sends no updates of all weights that could be added later; set server=sync"
    remembers = "clients hold no versions that all know of; set downlink.memory=false"
    conflicts = [
        (config.downlink.remembers and not all_weights, "downlink.memory", other_weights),
        (drawn > clients, "clients_per_round", up_to_all),
        ((config.min_clients or 1) > clients, "min_clients", up_to_all),
        ((config.simulation.nodes or 1) > clients, "simulation.nodes", up_to_all),
        (
            config.simulation.data is not None and len(config.simulation.data) != clients,
            "simulation.data",
            f"must have one place for each of the clients={clients}",
        ),
        (
            config.simulation.data is not None and config.simulation.nodes not in (None, clients),
            "simulation.nodes",
            "with simulation.data each client has a node of its own; set simulation.nodes=null",
        ),
        (config.ray.address is not None, "ray.address", elsewhere),
        (config.min_replies > drawn, "min_replies", f"must be from 1 to clients_per_round={drawn}"),
        (private and config.oversample > 1, "oversample", f"{replies}oversample=1"),
        (private and config.min_replies > 1, "min_replies", f"{replies}min_replies=1"),
        (config.server_lr != 1 and not updates, "server_lr", no_updates),
        (asynchronous and (config.oversample > 1 or config.min_replies > 1), "server", in_order),
        (asynchronous and private, "server", "who replies when would change what is private; set server=sync"),
        (asynchronous and config.downlink.remembers, "server", remembers),
        (asynchronous and not (updates and all_weights), "server", add_later),
        (
            config.buffer is not None and not asynchronous,
            "buffer",
            "rounds have none; set server=async, or buffer=null",
        ),
    ]
    refuse(config, conflicts)


def saved_each_round(config: Config, method: Method) -> str | None:
    """Return why the state has to be saved after each round; None where a run may resume some rounds earlier."""
    if config.privacy.noised:
        return "each round of a private run is paid for once, so none may be repeated"
    if method.error_feedback or method.training.keeps_state:
        return f"clients of strategy={method.name} keep something from round to round, which must fit the saved state"
    return None


def check_saving(config: Config, method: Method) -> None:
    """Refuse to save the state more rarely than the run can go back."""
    if (reason := saved_each_round(config, method)) is not None:
        refuse(config, [((config.save_every or 1) > 1, "save_every", f"{reason}; set save_every=1")])


def check_weights(config: Config, method: Method) -> None:
    """Refuse a limit of weights, or a robust mean, where the mean is not one of the updates of a round."""
    limited, robust, asynchronous = config.max_share is not None, config.aggregation != "mean", config.server == "async"
    private = config.privacy.noised or config.privacy.randomized_response is not None
    comparable = method.server.averages_updates and type(method.selection) is SubmodelSelector
    no_updates = f"{method.name} sends no updates of all weights that could be compared; set aggregation=mean"
    left_out = (
        "error feedback corrects the codec, not replies that a robust mean discards; set strategy.error_feedback=false"
    )
    asked = config.clients_per_round
    few = f"of the replies of {asked} clients none is left out; set clients_per_round=3 or more"
    one_weight = f"with aggregation={config.aggregation} all clients weigh the same; set max_share=null"
    conflicts = [
        (limited and config.equal_weights, "max_share", "equal weights need no limit; set max_share=null"),
        (limited and config.privacy.noised, "max_share", "with noise all clients weigh the same; set max_share=null"),
        (limited and asynchronous, "max_share", "is a share of a round; with server=async set client_weights=equal"),
        (limited and robust, "max_share", one_weight),
        (robust and not comparable, "aggregation", no_updates),
        (robust and private, "aggregation", "privacy.* covers the mean only; set aggregation=mean"),
        (robust and method.error_feedback, "aggregation", left_out),
        (robust and asynchronous, "aggregation", "compares the replies of a round; set server=sync"),
        (robust and asked < 3, "aggregation", few),
    ]
    refuse(config, conflicts)


def check_data(config: Config, task: Task, method: Method) -> None:
    """Refuse a partition or a treatment of labels that the task's data do not allow."""
    absent, labels = config.local.absent_labels, config.partition.labels_per_client
    unlabelled, reason = not isinstance(task, Classification), f"{task.name} has no label for each sample; set"
    refuse(
        config,
        [
            (unlabelled and absent != "kept", "local.absent_labels", f"{reason} local.absent_labels=kept"),
            (unlabelled and method.codec.tells_labels, "strategy.label_rows", f"{reason} strategy.label_rows=all"),
        ],
    )
    quantity = isinstance(task, LabelledRows) and task.quantity
    classes, of = (QUANTILES, "tenths") if quantity else (task.inputs().get("classes"), "labels")
    if config.partition.name != "label_shard" or labels is None or classes is None:
        return
    needed = -(-classes // labels)
    per_client = f"must be from 1 to {classes}, the {of} of {task.name}"
    cover = f"must be at least {needed}, so that clients of {labels} {of} cover the {classes} of {task.name}"
    refuse(
        config,
        [(labels > classes, "partition.labels_per_client", per_client), (config.clients < needed, "clients", cover)],
    )


def check_layers(config: Config, module: nn.Module, label: str) -> None:
    """Refuse a model with layers that privacy or `static_norm` do not allow; `label` is its name in errors."""
    private = config.privacy.noised or config.privacy.randomized_response is not None
    by_train, statistics = config.static_norm == "train", any(b.is_floating_point() for b in module.buffers())
    # With noise a variance may become negative, and with flipped masks alone it would never change.
    averaged = (
        "has running statistics, which cannot be averaged with privacy; set model=digits model.norm=static (likewise "
        "cnn4, cnn8, preact_resnet18), or take model=mlp or another without"
    )
    no_layer = f"{label} has no batch norm that keeps no statistics; set model.norm=static, or static_norm=batch"
    publishes = "publishes what a pass over clients' rows gives; with privacy set static_norm=batch"
    conflicts = [
        (private and statistics, label.partition("=")[0], averaged),
        (by_train and not static_norms(module), "static_norm", no_layer),
        (by_train and private, "static_norm", publishes),
    ]
    refuse(config, conflicts)


def check_gpus(config: Config) -> None:
    """Refuse shares of GPUs that the machine of a simulation does not have."""
    gpus = torch.cuda.device_count()
    reason = f"must be at most {gpus}, the GPUs of this machine" if gpus else "PyTorch finds no GPU here"
    conflict = (config.client_gpus > gpus, "client_gpus", f"{reason}; set client_gpus=0 to train on CPUs")
    refuse(config, [conflict])
