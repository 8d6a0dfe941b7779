"""Rounds of a strategy without any node: what it sends, and replies that are made up."""

from typing import Any

from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from fedmrn_app.flower.host_table import Host
from fedmrn_app.flower.messages import pack_state, payload_content, read_order
from fedmrn_app.flower.strategy import PayloadStrategy
from fedmrn_app.wire.payload import Payload, encode_payload
from tests.reference import SAMPLES, STATE, made_up_payload

HOSTS = {client: Host(node_id=100 + client, samples=count) for client, count in SAMPLES.items()}
NO_GRID: Grid = None  # type: ignore[assignment]
CONFIG = b"the run's configuration"


def send(strategy: PayloadStrategy, server_round: int = 1, grid: Any = NO_GRID) -> list[Message]:
    messages = list(strategy.configure_train(server_round, pack_state(STATE), ConfigRecord(), grid))
    for number, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = f"message {number}"  # as the grid does when it sends
    return messages


def good_payload(message: Message) -> Payload:
    order = read_order(message.content)
    return made_up_payload(order.client, order.seed)


def payloads_of(messages: list[Message]) -> dict[int, Payload]:
    return {read_order(message.content).client: good_payload(message) for message in messages}


def reply_with(message: Message, payload: bytes) -> Message:
    return Message(payload_content(payload), reply_to=message)


def good_reply(message: Message) -> Message:
    return reply_with(message, encode_payload(good_payload(message)))
