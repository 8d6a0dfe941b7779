"""The real ClientApp on a node of this process, and the messages that it is sent."""

from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedmrn_app.client_app import train
from fedmrn_app.config.build import resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.config.resolved import pack_config
from fedmrn_app.config.schema import Values
from fedmrn_app.exchange.messages import read_payload
from fedmrn_app.exchange.orders import order_content
from fedmrn_app.federation.protocol import Order
from fedmrn_app.federation.server import OpenRound, open_round
from fedmrn_app.federation.worker import Worker
from fedmrn_app.flower.hosted import query_content
from tests.local_nodes import allow_messages, set_message_id
from tests.plain.upload import Upload, read_upload

allow_messages()
SMALL = ("clients=5", "clients_per_round=3", "local.epochs=1", "local.batch_size=64")


def node(**settings: Any) -> Context:
    config = {name.replace("_", "-"): value for name, value in settings.items()}
    return Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})


def asking(values: Values | None, kind: str = "query", content: RecordDict | None = None) -> Message:
    if content is None:
        content = RecordDict() if values is None else query_content(b"", None)
    if values is not None:
        content["run"] = ConfigRecord({"config": pack_config(values, "ab12")})
    message = Message(content, dst_node_id=1, message_type=kind)
    set_message_id(message, "asked")
    return message


def small(*overrides: str) -> Values:
    values, _, _ = resolve_from_data(compose_values((*SMALL, *overrides)))
    return values


def first_round(worker: Worker) -> OpenRound:
    _, protocol = worker.model()
    state = protocol.begin()
    samples = {client: worker.sample_count(client) for client in range(worker.settings.clients)}
    return open_round(protocol, state, 1, samples, 5)


def ask(context: Context, order: Order) -> Message:
    return train(asking(None, "train", order_content(order, None, None)), context)


def train_on(context: Context, round_: OpenRound, client: int) -> Upload:
    reply = ask(context, round_.order(client))
    known = round_.context(client)
    return read_upload(read_payload(reply), round_.protocol, round_.header(client, known), known, round_.dense)
