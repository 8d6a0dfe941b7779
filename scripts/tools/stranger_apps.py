"""Ten small apps in the shapes of public ones, and the ways in which each is run; `strangers.py` runs them.

Networks, optimizers, learning rates, batch sizes, and shares of clients of the first four are those of Flower's
quickstart-pytorch, advanced-pytorch, quickstart-huggingface (a random BERT of two layers) and
quickstart-pytorch-lightning. The others train small networks on Fashion-MNIST: AdamW with a schedule over the rounds,
batch norm, and the strategies FedAdam, FedYogi, QFedAvg and FedProx. Nothing is tuned for the plug-in. There are ten
clients, 2,000 training and 2,000 test rows of a permutation; the sentences of the third app are drawn at random. The
score is the accuracy in percent, or 100 times the loss of the autoencoder, after rounds 1, 3, 5 and all. Needs
`fedmrn[examples]`.
"""

from __future__ import annotations

import io
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import lightning
import numpy as np
import pyarrow.parquet as parquet
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx, FedYogi, QFedAvg, Strategy
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

from fedmrn_app.plugin import Compressed, compress_uplink, learn_masks
from tests.local_nodes import LocalGrid

CLIENTS, BATCH = 10, 32
SHOWN = (1, 3, 5)  # rounds, beside the last one
KINDS: dict[str, Callable[[Strategy], Any]] = {
    "plain": lambda strategy: strategy,
    "default": Compressed,
    "eden": lambda strategy: Compressed(strategy, "eden"),
    "fedmrn": lambda strategy: Compressed(strategy, "fedmrn"),
    "0.2 bits": lambda strategy: Compressed(strategy, options={"bits": 0.2}),
}
Rows = tuple[Tensor, Tensor]


@cache
def images(folder: Path, split: str, count: int) -> Rows:
    """Images float32 (count, channels, height, width) from -1 to 1, and labels int64 (count,)."""
    table = parquet.read_table(next(folder.glob(f"{split}-*.parquet")))
    order = np.random.default_rng(7).permutation(table.num_rows)[:count]
    column = table.column("img" if "img" in table.column_names else "image").take(order).to_pylist()
    x = np.stack([np.asarray(Image.open(io.BytesIO(image["bytes"])), np.float32) for image in column])
    x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
    y = table.column("label").take(order).to_numpy().astype(np.int64)
    return torch.from_numpy(np.ascontiguousarray(x) / 127.5 - 1), torch.from_numpy(y)


def sentences(count: int, seed: int) -> Rows:
    """Sixteen tokens each, about half of them among the eight words of their class."""
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 2, count)
    own = draw.integers(5, 13, (count, 16)) + 60 * y[:, None]
    x = np.where(draw.random(own.shape) < 0.5, own, draw.integers(130, 1500, own.shape))
    return torch.from_numpy(x), torch.from_numpy(y)


def by_label(y: Tensor, client: int) -> Tensor:
    """Rows of a client under Dirichlet partitions of parameter 1."""
    draw, mine = np.random.default_rng(42), []
    for label in range(10):
        rows = np.flatnonzero(y.numpy() == label)
        cuts = (np.cumsum(draw.dirichlet(np.ones(CLIENTS)))[:-1] * len(rows)).astype(int)
        mine.append(np.split(rows, cuts)[client])
    return torch.from_numpy(np.concatenate(mine))


class Images(nn.Module):
    """Two convolutions with 5x5 kernels, and linear layers; `view` needs contiguous outputs."""

    def __init__(self, channels: tuple[int, int, int], widths: tuple[int, ...]) -> None:
        super().__init__()
        one, two, three = channels
        self.conv1, self.conv2 = nn.Conv2d(one, two, 5), nn.Conv2d(two, three, 5)
        self.linear = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (rows, 10)."""
        for conv in (self.conv1, self.conv2):
            x = nn.functional.max_pool2d(torch.relu(conv(x)), 2)
        x = x.view(len(x), -1)
        for layer in self.linear[:-1]:
            x = torch.relu(layer(x))
        return cast(Tensor, self.linear[-1](x))


class Sentences(nn.Module):
    """BERT with random weights."""

    def __init__(self) -> None:
        super().__init__()
        sizes: Any = {"hidden_size": 128, "intermediate_size": 512, "num_labels": 2}
        self.bert = BertForSequenceClassification(
            BertConfig(vocab_size=1500, num_hidden_layers=2, num_attention_heads=2, **sizes)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (rows, 2)."""
        return cast(Tensor, self.bert(input_ids=x).logits)


class AutoEncoder(lightning.LightningModule):
    """784 pixels to three numbers and back."""

    def __init__(self, message: Message | None = None) -> None:
        super().__init__()
        self.message = message
        self.encoder = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 784))

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean squared error of the reconstruction, for pixels from -1 to 1."""
        x = (x.flatten(1) + 1) / 2
        return nn.functional.mse_loss(self.decoder(self.encoder(x)), x)

    def training_step(self, batch: Rows, number: int) -> Tensor:
        return cast(Tensor, self(batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        if self.message is None:
            return optimizer
        return learn_masks(optimizer, self, self.message, steps=int(self.trainer.estimated_stepping_batches))


class Normed(nn.Module):
    """Three convolutions with batch norm, of images that are averaged to 14 x 14."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 8, 16, 32)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[1:])
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (rows, 10)."""
        x = nn.functional.avg_pool2d(x, 2)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = nn.functional.max_pool2d(torch.relu(norm(conv(x))), 2)
        return cast(Tensor, self.head(x.flatten(1)))


def perceptron() -> nn.Module:
    """11,338 weights and biases; the images are averaged to 14 x 14."""
    layers = nn.Linear(196, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10)
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), *layers)


@dataclass(frozen=True)
class App:
    """An app: its network, its optimizer (None for Lightning's Trainer), its rows, rounds and strategy.

    Attributes:
        network: makes the network.
        optimizer: makes the optimizer.
        rows: returns the rows of a client.
        test: returns the test rows.
        rounds: number of rounds.
        share: of the clients that train in a round.
        strategy: makes the strategy.
        cosine: whether the learning rate falls over the rounds.
    """

    network: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer] | None
    rows: Callable[[int], Rows]
    test: Callable[[], Rows]
    rounds: int
    share: float = 1.0
    strategy: Callable[..., Strategy] = FedAvg
    cosine: bool = False

    def train(self, net: nn.Module, loader: DataLoader[tuple[Tensor, ...]], message: Message, *, masks: bool) -> float:
        """Train one epoch, with masks if the server asks for them, and return the mean loss."""
        if self.optimizer is None:
            cast(AutoEncoder, net).message = message if masks else None
            quiet: Any = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing"), False)
            trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet)
            trainer.fit(cast(AutoEncoder, net), loader)
            return 0.0
        config: Any = message.content.config_records["config"]
        mu, sent = float(config.get("proximal-mu", 0.0)), [p.detach().clone() for p in net.parameters()]
        optimizer = self.optimizer(net.parameters())
        for group in optimizer.param_groups if self.cosine else ():
            group["lr"] *= (1 + math.cos(math.pi * (config["server-round"] - 1) / self.rounds)) / 2
        if masks:
            learn_masks(optimizer, net, message, steps=len(loader))
        net.train()
        losses = []
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            losses.append(float(loss))
            if mu:
                loss = loss + mu / 2 * sum(((p - q) ** 2).sum() for p, q in zip(net.parameters(), sent, strict=True))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return float(np.mean(losses))

    def evaluate(self, state: Any) -> float:
        """Return the accuracy in percent, or 100 times the loss of the autoencoder."""
        net, (x, y) = self.network(), self.test()
        net.load_state_dict(state)
        with torch.no_grad():
            output = net.eval()(x)
        return 100 * float(output if self.optimizer is None else (output.argmax(1) == y).float().mean())

    def run(self, kind: str, seed: int) -> dict[str, float]:
        """Run all rounds, and return the scores by the round, the mean bytes of a reply, and processor seconds."""
        torch.manual_seed(seed)
        random.seed(seed)  # Flower samples clients by it
        client = ClientApp(mods=[] if kind == "plain" else [compress_uplink])

        @client.train()
        def _(message: Message, context: Context) -> Message:
            # batches and dropout do not depend on the method, whose draws and order of clients differ
            config: Any = message.content.config_records["config"]
            torch.manual_seed(10**6 * seed + 1000 * config["server-round"] + int(context.node_config["partition-id"]))
            net = self.network()
            net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
            data = TensorDataset(*self.rows(int(context.node_config["partition-id"])))
            loader = DataLoader(data, BATCH, shuffle=True)
            loss = self.train(net, loader, message, masks=kind.startswith("fedmrn"))
            metrics = MetricRecord({"num-examples": len(data), "train_loss": loss})
            return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)

        scores: dict[int, float] = {}

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            if server_round in {*SHOWN, self.rounds}:
                scores[server_round] = self.evaluate(arrays.to_torch_state_dict())
            return MetricRecord()

        began, grid = time.process_time(), LocalGrid(client, CLIENTS, {})
        strategy = KINDS[kind](self.strategy(fraction_train=self.share, fraction_evaluate=0.0))
        first = ArrayRecord(self.network().state_dict())
        strategy.start(cast(Grid, grid), first, num_rounds=self.rounds, evaluate_fn=evaluate)
        shown = {str(number): scores[number] for number in SHOWN if number in scores}
        size, seconds = float(np.mean(grid.reply_bytes)), time.process_time() - began
        return {**shown, "all": scores[self.rounds], "bytes": size, "seconds": seconds}


def apps(cifar10: Path, fashion: Path) -> dict[str, App]:
    """Return the apps by name."""
    sgd = partial(torch.optim.SGD, momentum=0.9)
    colour, grey = partial(images, cifar10), partial(images, fashion)

    def part(rows: Rows, chosen: Any) -> Rows:
        return rows[0][chosen], rows[1][chosen]

    def strided(load: Callable[[str, int], Rows], client: int) -> Rows:
        return part(load("train", 2000), slice(client, None, CLIENTS))

    def skewed(client: int) -> Rows:
        rows = grey("train", 2000)
        return part(rows, by_label(rows[1], client))

    small, wide = ((3, 6, 16), (400, 120, 84, 10)), ((1, 16, 32), (512, 128, 10))
    drawn, adamw = (lambda client: sentences(200, 100 + client)), partial(torch.optim.AdamW, lr=2e-4)
    evenly, test = partial(strided, grey), partial(grey, "test", 2000)
    leaf = partial(Images, (1, 6, 16), (256, 120, 84, 10))
    quick = App(
        partial(Images, *small), partial(sgd, lr=0.1), partial(strided, colour), partial(colour, "test", 2000), 5, 0.5
    )
    schedule = App(perceptron, partial(torch.optim.AdamW, lr=3e-3), evenly, test, 40, 0.5, cosine=True)
    return {
        "quickstart": quick,
        "advanced": App(partial(Images, *wide), partial(sgd, lr=0.01), skewed, test, 3, 0.5),
        "huggingface": App(Sentences, adamw, drawn, partial(sentences, 500, 99), 4, 0.3),
        "lightning": App(AutoEncoder, None, evenly, test, 3, 0.5),
        "adamw-cosine": schedule,
        "batchnorm": App(Normed, partial(torch.optim.SGD, lr=0.05), skewed, test, 10, 0.5),
        "fedadam": App(leaf, partial(torch.optim.SGD, lr=0.05), evenly, test, 10, 0.5, partial(FedAdam, eta=0.01)),
        "fedyogi": App(leaf, partial(torch.optim.Adam, lr=1e-3), evenly, test, 8, 0.5, partial(FedYogi, eta=0.01)),
        "qfedavg": App(
            perceptron, partial(torch.optim.SGD, lr=0.1), skewed, test, 10, 1.0,
            partial(QFedAvg, client_learning_rate=0.1, q=0.2),
        ),
        "fedprox": App(leaf, partial(sgd, lr=0.02), skewed, test, 10, 0.5, partial(FedProx, proximal_mu=0.5)),
    }  # fmt: skip
