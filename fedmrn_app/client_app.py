"""Flower's ClientApp: tell which clients this node hosts, and train one of them for a round."""

from __future__ import annotations

import contextlib
import logging
import sys
from functools import lru_cache

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedmrn_app.config.build import build_worker, check_node, check_targets, parse_config
from fedmrn_app.errors import FedMRNError, PayloadError
from fedmrn_app.federation.client import ClientState
from fedmrn_app.federation.versions import VersionError
from fedmrn_app.federation.worker import Worker
from fedmrn_app.flower.device_storage import StateError
from fedmrn_app.flower.messages import (
    Hosted,
    hosted_content,
    lost_content,
    one_line,
    payload_content,
    read_last,
    read_order,
    unpack_config,
)
from fedmrn_app.flower.node import LostError, Node

app = ClientApp()
if "flwr.server.superlink.fleet.vce" in sys.modules:  # Flower imports this before a simulation makes its actors
    from fedmrn_app.flower.ray_actors import join_cluster, keep_actors

    keep_actors()
    join_cluster()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Tell which clients this node hosts and how many samples each of them has, or why the node takes no part."""
    clients = range(0)
    try:
        node = Node.of(message, context)
        clients = node.clients()
        worker = open_worker(message, context)
        if worker.method.keeps_memory:
            node.residuals().begin()
        elif worker.settings.keeps_versions:
            with contextlib.suppress(StateError):  # without versions the node only receives more
                node.residuals().begin()
        nodes = None if node.setting("data-path") is not None else node.setting("num-partitions")
        samples = {client: worker.sample_count(client) for client in clients}
        last = read_last(message.content)
        kept = {} if last is None else node.residuals().latest(last)
        hosted = Hosted(samples, nodes=None if nodes is None else int(nodes), kept=kept)
    except Exception as error:  # a disk or a library may raise anything about this node's data
        reason = str(error) if isinstance(error, FedMRNError) else f"{type(error).__name__}: {error}"
        logging.getLogger("flwr").warning("takes no part: %s", reason)
        hosted = Hosted(dict.fromkeys(clients, 0), one_line(reason))
    return Message(hosted_content(hosted), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client for one round. The reply holds the payload alone, or what the node has lost."""
    try:
        node, worker = Node.of(message, context), open_worker(message, context)
    except LostError:
        return Message(lost_content("configuration"), reply_to=message)
    order = read_order(message.content)
    client, number = order.client, order.server_round
    if client not in node.clients():
        reason = f"client={client}: this node does not host it"
        raise PayloadError(reason, code="client", key="client", value=client)
    residuals = node.residuals() if worker.method.keeps_memory else None
    memory = None if residuals is None else residuals.read(client, number)
    versions = node.versions() if worker.settings.keeps_versions else None
    version = None if versions is None or order.base == 0 else versions.read(client)
    try:
        reply = worker.train(order, ClientState(memory, version))
    except VersionError:
        return Message(lost_content("version"), reply_to=message)
    if residuals is not None and reply.state.memory is not None:
        residuals.write(client, number, reply.state.memory)
    if versions is not None and reply.state.version is not None:
        versions.write(client, reply.state.version)
    return Message(payload_content(reply.payload), reply_to=message)


def open_worker(message: Message, context: Context) -> Worker:
    """Return this process's worker for the run.

    Raises:
        LostError: this node no longer has the run's configuration.
        FedMRNError: the configuration names code that this node does not allow, or the node's data do not fit.
    """
    node = Node.of(message, context)
    return _worker(node.config, node.setting("data-path"), node.setting("dataset-path"), node.allowed_targets())


@lru_cache(maxsize=1)
def _worker(packed: bytes, data_path: str | None, dataset_path: str | None, allowed: str) -> Worker:
    """Build the worker. The server has checked the configuration; only what this node alone knows is checked here.

    `data_path` holds the device's own samples, `dataset_path` its copy of the run's data set.
    """
    values = unpack_config(packed)
    check_targets(values, allowed.replace(",", " ").split())
    if dataset_path is not None:
        values["dataset"]["path"] = dataset_path
    config = parse_config(values)
    check_node(config)
    return build_worker(config, data_path)
