"""The ClientApp: each simulated node is one client."""

import json
from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedmrn_app.config.build import build_module, build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.federation.worker import Worker
from fedmrn_app.learning.batches import Batches

app = ClientApp()


@lru_cache(maxsize=1)
def opened(overrides: str) -> tuple[Worker, nn.Module]:
    """Return the data, the partition and the model, once per process."""
    _, config, task = resolve_from_data(compose_values(json.loads(overrides)))
    torch.set_num_threads(config.client_cpus)
    return build_worker(config), build_module(config, task)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model in the message, and return it."""
    worker, net = opened(str(context.run_config["overrides"]))
    local = worker.settings.local
    samples = worker.samples_of(int(context.node_config["partition-id"]))
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=local.lr)
    seed = torch.seed()
    batches = Batches(
        worker.task, samples, batch_size=local.batch_size, epochs=local.epochs, steps=local.steps, seed=seed
    )
    for x, y in batches:
        optimizer.zero_grad()
        worker.task.loss(net(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(samples)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
