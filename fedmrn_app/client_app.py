"""What a device does with a message: say which clients it hosts, and train one of them for a round."""

from __future__ import annotations

import contextlib
import logging
import sys
from functools import lru_cache
from pathlib import Path
from typing import cast

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from fedmrn_app.config.build import check_targets, read_config
from fedmrn_app.environment import ALLOW_TARGETS, VERSIONS_FOLDER, read_variable
from fedmrn_app.errors import ConfigError, FedMRNError, PayloadError
from fedmrn_app.federation.client import Kept
from fedmrn_app.federation.download import VersionError
from fedmrn_app.federation.worker import Worker
from fedmrn_app.flower.device_storage import Residuals, StateError, state_folder
from fedmrn_app.flower.device_versions import KeptVersions
from fedmrn_app.flower.messages import (
    Hosted,
    hosted_content,
    lost_content,
    one_line,
    payload_content,
    read_order,
    unpack_config,
    unpack_run,
)

app = ClientApp()
if "flwr.server.superlink.fleet.vce" in sys.modules:  # Flower imports this before a simulation makes its actors
    from fedmrn_app.flower.ray_actors import join_cluster, keep_actors

    keep_actors()
    join_cluster()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which clients this node hosts, and how many samples each of them has; or why it takes no part."""
    clients = range(0)
    try:
        clients = hosted_clients(context, run_clients(message, context))
        worker = open_worker(message, context)
        if worker.method.error_feedback:
            open_residuals(message, context).begin()
        elif worker.config.downlink.remembers:
            with contextlib.suppress(StateError):  # without versions it is only sent more
                open_residuals(message, context).begin()
        nodes = None if "data-path" in context.node_config else context.node_config.get("num-partitions")
        hosted = Hosted(
            {client: worker.sample_count(client) for client in clients}, nodes=None if nodes is None else int(nodes)
        )
    except Exception as error:  # ours, or whatever a disk or a library makes of this node's data
        reason = str(error) if isinstance(error, FedMRNError) else f"{type(error).__name__}: {error}"
        logging.getLogger("flwr").warning("takes no part: %s", reason)
        hosted = Hosted(dict.fromkeys(clients, 0), one_line(reason))
    return Message(hosted_content(hosted), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client for one round and reply with its payload, the only thing in the reply; or with what it lacks."""
    try:
        worker = open_worker(message, context)
    except LostError:
        return Message(lost_content("configuration"), reply_to=message)
    order = read_order(message.content)
    if order.client not in hosted_clients(context, worker.config.clients):
        raise PayloadError(f"client={order.client}: this node does not host it")
    client, number = order.client, order.server_round
    residuals = open_residuals(message, context) if worker.method.error_feedback else None
    residual = None if residuals is None else residuals.read(client, number)
    versions = open_versions(message, context) if worker.config.downlink.remembers else None
    version = None if versions is None or order.base == 0 else versions.read(client)
    try:
        reply = worker.train(order, Kept(residual, version))
    except VersionError:
        return Message(lost_content("version"), reply_to=message)
    if residuals is not None and reply.kept.residual is not None:
        residuals.write(client, number, reply.kept.residual)
    if versions is not None and reply.kept.version is not None:
        versions.write(client, reply.kept.version)
    return Message(payload_content(reply.payload), reply_to=message)


def open_residuals(message: Message, context: Context) -> Residuals:
    """The residuals that this node keeps of the run.

    Raises:
        LostError: as `run_config`.
    """
    root = context.node_config.get("state-path")
    run = unpack_run(run_config(message, context))
    return Residuals(state_folder() if root is None else Path(str(root)), run)


def open_versions(message: Message, context: Context) -> KeptVersions:
    """The versions of the global model that this node's clients hold.

    Raises:
        LostError: as `run_config`.
    """
    folder = open_residuals(message, context).folder
    elsewhere = read_variable(VERSIONS_FOLDER)
    return KeptVersions(Path(elsewhere) / folder.name if elsewhere else folder)


def run_clients(message: Message, context: Context) -> int:
    """How many clients the run has.

    Raises:
        PayloadError: the configuration does not say.
    """
    clients = unpack_config(run_config(message, context)).get("clients")
    if type(clients) is not int or clients < 1:
        raise PayloadError(f"clients={clients!r}: must be a number of clients")
    return clients


class LostError(ConfigError):
    """This node no longer has the run's configuration."""


def run_config(message: Message, context: Context) -> bytes:
    """The run's configuration, which comes with the first message and is kept on the node.

    Raises:
        LostError: it came with none, and the node has none.
    """
    record = message.content.config_records.get("run")
    if record is not None:
        context.state["run"] = ConfigRecord({"config": record["config"]})
    if "run" not in context.state:
        raise LostError("this node has lost the run's configuration; the server sends it again when it is told")
    return cast(bytes, cast(ConfigRecord, context.state["run"])["config"])


def open_worker(message: Message, context: Context) -> Worker:
    """This process's worker for the run.

    Raises:
        LostError: as `run_config`.
        FedMRNError: the configuration names code that this node does not allow, or the node's data do not fit.
    """
    node = context.node_config
    own, common = (None if node.get(key) is None else str(node[key]) for key in ("data-path", "dataset-path"))
    allowed = str(node.get("allow-targets", read_variable(ALLOW_TARGETS)))
    return _worker(run_config(message, context), own, common, allowed)


@lru_cache(maxsize=1)
def _worker(config: bytes, data_path: str | None, dataset_path: str | None, allowed: str) -> Worker:
    """Build the worker; `data_path` holds the device's own rows, `dataset_path` its copy of the run's data set."""
    values = unpack_config(config)
    check_targets(values, allowed.replace(",", " ").split())
    if dataset_path is not None:
        values["dataset"]["path"] = dataset_path
    return Worker(read_config(values), data_path)


def hosted_clients(context: Context, clients: int) -> range:
    """The clients a node hosts: of n nodes, node i has client i and every n-th one after it.

    A node with data of its own is one client.

    Raises:
        ConfigError: the node's configuration does not say which.
    """
    try:
        first = int(context.node_config["partition-id"])
        nodes = int(context.node_config.get("num-partitions", clients))
    except (KeyError, ValueError):
        raise ConfigError("partition-id: is missing in the node's configuration; say partition-id=NUMBER") from None
    own = "data-path" in context.node_config
    if first < 0 or (own and first >= clients):
        raise ConfigError(f"partition-id={first}: must be from 0 to {clients - 1}, the run's clients")
    if own:
        return range(first, first + 1)
    return range(first, clients, max(1, nodes))
