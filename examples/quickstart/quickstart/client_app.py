"""The ClientApp: each client trains on its share of the images."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedmrn_app.plugin import compress_uplink, learn_masks
from quickstart.task import client_loader, new_net, proximal_term, train

app = ClientApp(mods=[compress_uplink])


@app.train()
def train_client(message: Message, context: Context) -> Message:
    """Train the model in the message, and return it."""
    config, node = context.run_config, context.node_config
    server_round = message.content["config"]["server-round"]
    torch.set_num_threads(1)
    loader = client_loader(config, node["partition-id"], node["num-partitions"], server_round)
    net, epochs = new_net(config), config["local-epochs"]
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    mu = message.content["config"].get("proximal-mu")  # set by FedProx
    penalty = None if mu is None else proximal_term(net, mu)
    optimizer = torch.optim.SGD(net.parameters(), lr=config["learning-rate"], momentum=0.9)
    if config["method"] == "fedmrn":
        learn_masks(optimizer, net, message, steps=epochs * len(loader))
    loss = train(net, loader, epochs, optimizer, penalty)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
