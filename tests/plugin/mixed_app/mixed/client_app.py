"""The ClientApp: training moves the weights in a direction; client 0 has no mod, and clients fail if told to."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedmrn_app.plugin import compress_uplink


def with_exception(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Apply the mod, except on client 0."""
    plain = context.node_config["partition-id"] == 0
    return call_next(message, context) if plain else compress_uplink(message, context, call_next)


DIRECTION = np.random.default_rng(1).normal(size=(64, 64)).astype(np.float32)


def along(arrays: ArrayRecord) -> float:
    """Return how far weights lie in the direction; training adds about 0.1."""
    return float((arrays["w"].numpy() * DIRECTION).mean())


app = ClientApp(mods=[with_exception])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the weights in the message."""
    config, client = cast(Mapping[str, Any], message.content["config"]), context.node_config["partition-id"]
    if config["fails"] == "all" or (config["fails"] == "one" and client == 1):
        raise ValueError(f"client {client} has no data")
    arrays = message.content.array_records["arrays"]
    trained = ArrayRecord({"w": Array(arrays["w"].numpy() + np.float32(0.1) * DIRECTION)})
    return Message(RecordDict({"arrays": trained, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return how far the weights have come."""
    metrics = MetricRecord({"num-examples": 1, "along": along(message.content.array_records["arrays"])})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
