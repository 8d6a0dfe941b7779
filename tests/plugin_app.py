"""A small Flower app of somebody's own, and a grid that runs it in this process: for the tests of the plug-in."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from torch import Tensor, nn

from fedmrn_app.plugin import Compressed, MaskedSGD, compress_uplink, learn_masks
from fedmrn_app.plugin.options import Options
from tests.local_nodes import LiveNodes

State = dict[str, Tensor]
Loop = Callable[[Any, Message], None]
Train = Callable[[nn.Module, Message, Tensor, Tensor], None]
NODES = (11, 12, 13)
STEPS = 20


def new_net(*, batch_norm: bool = True) -> nn.Module:
    """With tied weights, a frozen layer, and batch norm with its integer counter."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 6, 3, padding=1)
            self.norm = nn.BatchNorm2d(6) if batch_norm else nn.GroupNorm(2, 6)
            self.frozen = nn.Linear(6 * 16, 24)
            self.hidden = nn.Linear(24, 24, bias=False)
            self.tied = nn.Linear(24, 24)
            self.tied.weight = self.hidden.weight
            self.head = nn.Linear(24, 3)
            for parameter in self.frozen.parameters():
                parameter.requires_grad = False

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.norm(self.conv(x)))
            x = torch.relu(self.frozen(nn.functional.max_pool2d(x, 2).flatten(1)))
            y: Tensor = self.head(torch.relu(self.tied(torch.relu(self.hidden(x)))))
            return y

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net()


def data_of(node: int, count: int = 160) -> tuple[Tensor, Tensor]:
    """Images whose brightest third is their class; each node's are its own."""
    random = np.random.default_rng(node)
    labels = random.integers(0, 3, count)
    x = random.normal(0, 1, (count, 1, 8, 8)).astype(np.float32)
    for image, label in zip(x, labels, strict=True):
        image[0, :, 2 * label : 2 * label + 3] += 1.5
    return torch.from_numpy(x), torch.from_numpy(labels)


def loaded(arrays: ArrayRecord) -> nn.Module:
    """A network with these arrays."""
    state = arrays.to_torch_state_dict()
    net = new_net(batch_norm="norm.running_mean" in state)
    net.load_state_dict(state)
    return net


def accuracy(arrays: ArrayRecord) -> float:
    """Of the global model, on rows that no node has."""
    net = loaded(arrays)
    x, y = data_of(99, 300)
    with torch.no_grad():
        return float((net.eval()(x).argmax(1) == y).float().mean())


def run_steps(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int = STEPS) -> None:
    net.train()
    for step in range(steps):
        rows = torch.arange(16 * step, 16 * (step + 1)) % len(x)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def new_app(train: Train, mods: list[Any]) -> ClientApp:
    app = ClientApp(mods=mods)

    @app.train()
    def _(message: Message, context: Context) -> Message:
        net = loaded(message.content.array_records["arrays"])
        x, y = data_of(message.metadata.dst_node_id)
        train(net, message, x, y)
        metrics = MetricRecord({"num-examples": len(x)})
        return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)

    return app


class LocalGrid(LiveNodes):
    """The nodes of these tests, whose replies may be tampered with, and come in another order."""

    def __init__(self, app: ClientApp, tamper: Callable[[int, Message], None] = lambda node, reply: None) -> None:
        super().__init__(app, NODES, {})
        self.tamper = tamper

    def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            reply = self.deliver(message)
            if reply.has_content():
                self.tamper(message.metadata.dst_node_id, reply)
            replies.append(reply)
        return replies[::-1]


def plain(net: nn.Module, message: Message, x: Tensor, y: Tensor) -> None:
    run_steps(net, torch.optim.SGD(net.parameters(), lr=0.1), x, y)


def masked(net: nn.Module, message: Message, x: Tensor, y: Tensor) -> None:
    run_steps(net, MaskedSGD(net, message, lr=0.1, steps=STEPS), x, y)


def masked_adamw(net: nn.Module, message: Message, x: Tensor, y: Tensor) -> None:
    trained = [p for p in net.parameters() if p.requires_grad]
    run_steps(net, learn_masks(torch.optim.AdamW(trained, lr=3e-3), net, message, steps=STEPS), x, y)


def inner(kind: type[FedAvg] = FedAvg, **options: Any) -> FedAvg:
    return kind(fraction_evaluate=0.0, min_available_nodes=3, min_train_nodes=3, **options)


def run(
    strategy: Strategy,
    train: Train = plain,
    rounds: int = 4,
    mods: list[Any] | None = None,
    batch_norm: bool = True,
    **grid: Any,
) -> tuple[Result, LocalGrid]:
    local = LocalGrid(new_app(train, [compress_uplink] if mods is None else mods), **grid)
    return strategy.start(local, ArrayRecord(new_net(batch_norm=batch_norm).state_dict()), num_rounds=rounds), local  # type: ignore[arg-type]


def learned(
    loop: Loop,
    make: Callable[[], nn.Module] = new_net,
    alpha: float | Literal["auto"] = 0.05,
    method: str = "fedmrn",
) -> tuple[State, State]:
    """What the server got of a client after a round of this loop, and what the client ended with."""
    ended: State = {}
    app = ClientApp(mods=[compress_uplink])

    @app.train()
    def _(message: Message, context: Context) -> Message:
        net = make()
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        loop(net, message)
        ended.update(copy.deepcopy(net.state_dict()))
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)

    arrived: list[State] = []

    class Look(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            replies = list(replies)
            good = [reply.content for reply in replies if reply.has_content()]
            arrived.extend(content.array_records["arrays"].to_torch_state_dict() for content in good)
            return super().aggregate_train(server_round, replies)

    grid = LocalGrid(app)
    options: Options = {"alpha": alpha, "dense_bits": 32, "max_failed_rounds": 1}
    strategy = Compressed(Look(fraction_evaluate=0.0, min_available_nodes=3), method, **options)
    strategy.start(grid, ArrayRecord(make().state_dict()), num_rounds=1)  # type: ignore[arg-type]
    for error in grid.failures.values():
        raise error
    assert len(arrived) == 3
    return arrived[-1], ended
