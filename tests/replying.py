"""Clients of a test, each on a node of its own, that reply after some seconds with made-up payloads."""

import threading
from collections.abc import Iterable, Mapping

from flwr.app import Error, Message

from fedmrn_app.federation.protocol import Order
from fedmrn_app.flower.messages import read_order
from tests.fake_grid import FakeGrid
from tests.made_up import HOSTS, good_reply

Seconds = Mapping[int, float | None]  # until a client replies; None fails at once


class Clients(FakeGrid):
    """Flower's grid with such clients.

    Attributes:
        orders: what was asked, in its order.
    """

    def __init__(self, seconds: Seconds) -> None:
        super().__init__({host.node_id: None for host in HOSTS.values()})
        self.seconds = seconds
        self.orders: list[Order] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        messages = list(messages)
        pushed = super().push_messages(messages)
        for message in messages:
            order = read_order(message.content)
            self.orders.append(order)
            seconds = self.seconds.get(order.client, 0.0)
            reply = Message(Error(1, "broken"), reply_to=message) if seconds is None else good_reply(message)
            threading.Timer(seconds or 0.0, self.answers.__setitem__, (message.metadata.message_id, reply)).start()
        return pushed
