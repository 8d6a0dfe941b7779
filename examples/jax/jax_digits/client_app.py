"""The ClientApp: each client trains a perceptron on its share of the digits."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedmrn_app.plugin import compress_uplink
from jax_digits.task import rows_of, train

app = ClientApp(mods=[compress_uplink])


@app.train()
def train_client(message: Message, context: Context) -> Message:
    """Train the model in the message on the client's rows, and return it."""
    run, node = context.run_config, context.node_config
    weights = {name: array.numpy() for name, array in message.content["arrays"].items()}
    x, y = rows_of(node["partition-id"], node["num-partitions"])
    weights = train(weights, x, y, run["local-epochs"], run["learning-rate"])
    arrays = ArrayRecord({name: Array(np.asarray(value)) for name, value in weights.items()})
    content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(RecordDict(content), reply_to=message)
