"""The ClientApp: training adds a step of each client's own; a client fails, or is without the mod, if told to."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedmrn_app.plugin import compress_uplink


def except_last(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Apply the mod, except on the last client."""
    plain = context.node_config["partition-id"] == 4
    return call_next(message, context) if plain else compress_uplink(message, context, call_next)


app = ClientApp(mods=[except_last])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the weights in the message."""
    client = cast(int, context.node_config["partition-id"])
    arrays, config = message.content.array_records["arrays"], cast(Mapping[str, Any], message.content["config"])
    if client in (config["fails"], config["fails-too"]):
        raise ValueError(f"client {client} has no data")
    values = {name: array.numpy() for name, array in arrays.items()}
    random = np.random.default_rng([client, int(1000 * abs(values["w"][0, 0]))])
    moved = {name: v + random.normal(0, 0.01, v.shape).astype(np.float32) for name, v in values.items()}
    record = ArrayRecord({name: Array(value) for name, value in moved.items()})
    metrics = MetricRecord({"num-examples": 1, "client": client})
    return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)
