"""The ClientApp: each client trains on its share of the digits with a Trainer."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedmrn_app.plugin import compress_uplink
from lightning_digits.task import Digits, fit

app = ClientApp(mods=[compress_uplink])


@app.train()
def train_client(message: Message, context: Context) -> Message:
    """Train the model in the message, and return it."""
    config, node = context.run_config, context.node_config
    torch.set_num_threads(1)
    model = Digits(config, message if config["method"] == "fedmrn" else None)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    server_round = message.content["config"]["server-round"]
    metrics = MetricRecord({"num-examples": fit(model, node["partition-id"], node["num-partitions"], server_round)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
