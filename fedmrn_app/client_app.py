"""Flower's ClientApp: tell which clients this node hosts, train one of them for a round, or evaluate the model."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedmrn_app.config.build import build_worker, check_node, parse_config, precision_remark
from fedmrn_app.config.resolved import about_keys, unpack_config
from fedmrn_app.config.targets import check_targets
from fedmrn_app.errors import FedMRNError, PayloadError, VersionError
from fedmrn_app.exchange.client_storage import Purpose, StateError
from fedmrn_app.exchange.device_identity import device_identity
from fedmrn_app.exchange.messages import lost_content, one_line, payload_content, read_roster, read_secure
from fedmrn_app.exchange.orders import read_order
from fedmrn_app.exchange.secure_answers import accept_once
from fedmrn_app.federation.client import ClientState, Reply
from fedmrn_app.federation.protocol import Order
from fedmrn_app.federation.secure_round import secure_input
from fedmrn_app.federation.tallies import Tally, tally_input
from fedmrn_app.federation.worker import Worker
from fedmrn_app.flower.hosted import Hosted, check_wire, hosted_content, read_last
from fedmrn_app.flower.node import LostError, Node
from fedmrn_app.secure.fields import Fields, Words
from fedmrn_app.secure.graph import LeastNumbers, read_least
from fedmrn_app.secure.messages import Envelope

Payload = Callable[[Node, Worker, Order], bytes]
Summand = Callable[[Node, Worker, Order, int], tuple[Fields, Sequence[Words]]]  # of so many clients

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Tell which clients this node hosts and how many samples each of them has, or why the node takes no part."""
    clients = range(0)
    try:
        node = Node.of(message, context)
        clients = node.clients()
        check_wire(message.content)
        worker = open_worker(message, context)
        if worker.settings.secure:
            read_least(context.node_config)  # takes no part with a wrong one
        if worker.method.keeps_state or worker.settings.secure:
            node.residuals().begin()
        elif worker.settings.keeps_versions:
            with contextlib.suppress(StateError):  # without versions the node only receives more
                node.residuals().begin()
        nodes = None if node.setting("data-path") is not None else node.setting("num-partitions")
        if worker.settings.evaluates:
            worker.rows.must_hold_out()
        samples = {client: worker.sample_count(client) for client in clients}
        last = read_last(message.content)
        kept = {} if last is None else node.residuals().latest(last)
        shares, columns = None if nodes is None else int(nodes), worker.task.own_columns()
        hosted = Hosted(samples, nodes=shares, kept=kept, columns=columns)
    except Exception as error:  # a disk or a library may raise anything about this node's data
        reason = str(error) if isinstance(error, FedMRNError) else f"{type(error).__name__}: {error}"
        logging.getLogger("flwr").warning("takes no part: %s", reason)
        hosted = Hosted(dict.fromkeys(clients, 0), one_line(reason))
    return Message(hosted_content(hosted), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client for one round. The reply holds the payload alone, or what the node has lost."""

    def payload(node: Node, worker: Worker, order: Order) -> bytes:
        return _train(node, worker, order).payload

    def summand(node: Node, worker: Worker, order: Order, summands: int) -> tuple[Fields, Sequence[Words]]:
        return secure_input(worker.model()[1], _train(node, worker, order).update, summands)

    return _reply(message, context, payload, summand, "train")


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model on the rows that a client holds out. The reply holds its tally, or what the node has lost."""

    def payload(node: Node, worker: Worker, order: Order) -> bytes:
        return _evaluate(node, worker, order).pack()

    def summand(node: Node, worker: Worker, order: Order, summands: int) -> tuple[Fields, Sequence[Words]]:
        return tally_input(_evaluate(node, worker, order), summands)

    return _reply(message, context, payload, summand, "evaluate")


def _reply(message: Message, context: Context, payload: Payload, summand: Summand, purpose: Purpose) -> Message:
    """Answer a message that brings an order, or one of the messages of a secure sum."""
    try:
        node, worker = Node.of(message, context), open_worker(message, context)
    except LostError:
        return Message(lost_content("configuration"), reply_to=message)
    if purpose == "evaluate" and not worker.settings.evaluates:
        reason = "this run has no evaluation by clients; set evaluation.on=clients"
        raise PayloadError(reason, code="evaluation")
    try:
        secure = read_secure(message.content)
        if secure is not None:
            data = _answer(node, worker, message.content, secure, summand, purpose)
        elif worker.settings.secure:
            raise PayloadError("with privacy.secure_aggregation this node sends no single reply", code="secure-order")
        else:
            data = payload(node, worker, read_order(message.content))
    except VersionError:
        return Message(lost_content("version"), reply_to=message)
    except PayloadError as error:
        if error.code != "secure-revealed":
            raise
        return Message(lost_content("revealed"), reply_to=message)
    return Message(payload_content(data), reply_to=message)


def _evaluate(node: Node, worker: Worker, order: Order) -> Tally:
    """Evaluate the model that a client was sent, and keep the client's version of it."""
    _check_hosted(node, order.client)
    versions = node.versions() if worker.settings.keeps_versions else None
    kept = None if versions is None or order.base == 0 else versions.read(order.client)
    tally, version = worker.evaluate(order, kept)
    if versions is not None and version is not None:
        versions.write(order.client, version)
    return tally


def _train(node: Node, worker: Worker, order: Order) -> Reply:
    """Train a client, and keep what it keeps."""
    client, number = order.client, order.server_round
    _check_hosted(node, client)
    residuals = node.residuals() if worker.method.keeps_state else None
    memory = None if residuals is None else residuals.read(client, number)
    versions = node.versions() if worker.settings.keeps_versions else None
    version = None if versions is None or order.base == 0 else versions.read(client)
    reply = worker.train(order, ClientState(memory, version))
    if residuals is not None and reply.state.kept is not None:
        residuals.write(client, number, reply.state.kept)
    if versions is not None and reply.state.version is not None:
        versions.write(client, reply.state.version)
    return reply


def _answer(node: Node, worker: Worker, content: RecordDict, data: bytes, summand: Summand, purpose: Purpose) -> bytes:
    """Answer a message of the secure sum; the one that asks for the client's input comes with an order."""
    if not worker.settings.secure:
        raise PayloadError("this run has no secure sums; set privacy.secure_aggregation=true", code="secure-order")
    envelope, _ = Envelope.of(data)
    _check_hosted(node, envelope.client)

    @cache
    def sent() -> Order:
        return read_order(content)

    def vectors(summands: int) -> tuple[Fields, Sequence[Words]]:
        order = sent()
        if (order.client, order.server_round) != (envelope.client, envelope.server_round):
            reason = f"the order is for client {order.client} in round {order.server_round}"
            raise PayloadError(f"{reason}, the message of the secure sum is not", code="secure-client")
        return summand(node, worker, order, summands)

    def binding() -> bytes:
        order = sent()
        held = node.versions().read(order.client) if worker.settings.keeps_versions and order.base else None
        return worker.binding(order, held, node.config, purpose)

    declared = worker.settings.least_summands if purpose == "train" else worker.settings.least_tallies
    least = LeastNumbers.of(declared, read_least(node.context.node_config))
    identity = device_identity(node.context.node_config, about_keys(node.config, purpose), read_roster(content))
    secrets = node.secrets(purpose)
    accepted = accept_once(secrets, envelope.client, data, binding=binding, least=least, identity=identity)
    return accepted.answer(vectors)


def _check_hosted(node: Node, client: int) -> None:
    if client not in node.clients():
        reason = f"client={client}: this node does not host it"
        raise PayloadError(reason, code="client", key="client", value=client)


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
    if (remark := precision_remark(config)) is not None:
        logging.getLogger("flwr").warning(remark)
    return build_worker(config, data_path)
