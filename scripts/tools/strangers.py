"""Four small apps in the shapes of Flower's examples: without the plug-in, and with several of its methods.

Usage: python scripts/tools/strangers.py CIFAR10 FASHION_MNIST [--seeds 10 11] [--apps quickstart lightning]

The folders hold parquet files. Networks, optimizers, learning rates, batch sizes, and shares of clients are those of
Flower's quickstart-pytorch, advanced-pytorch, quickstart-huggingface (a random BERT of two layers) and
quickstart-pytorch-lightning; nothing is tuned for the plug-in. There are ten clients and one local epoch per round.
There are 10,000 training and 4,000 test rows of a permutation; the sentences of the third app are drawn at random.
Needs `fedmrn[examples]`.
"""

from __future__ import annotations

import argparse
import io
import logging
import random
import time
import warnings
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
from flwr.serverapp.strategy import FedAvg
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

from fedmrn_app.plugin import Compressed, compress_uplink, learn_masks
from tests.local_nodes import LocalGrid

CLIENTS, BATCH = 10, 32
KINDS: dict[str, Callable[[FedAvg], Any]] = {
    "plain": lambda strategy: strategy,
    "quantized": Compressed,
    "quantized, low_rank=false": lambda strategy: Compressed(strategy, options={"low_rank": False}),
    "quantized, bits=0.5": lambda strategy: Compressed(strategy, options={"bits": 0.5}),
    "quantized, bits=1": lambda strategy: Compressed(strategy, options={"bits": 1.0}),
    "eden": lambda strategy: Compressed(strategy, "eden"),
    "fedmrn, alpha=auto": lambda strategy: Compressed(strategy, "fedmrn", alpha="auto"),
    "fedmrn, alpha=auto, low_rank=false": lambda strategy: Compressed(
        strategy, "fedmrn", alpha="auto", options={"low_rank": False}
    ),
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


@dataclass(frozen=True)
class App:
    """An app: its network, its optimizer (None for Lightning's Trainer), its rows, rounds and share of clients."""

    network: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer] | None
    rows: Callable[[int], Rows]
    test: Callable[[], Rows]
    rounds: int
    share: float

    def train(self, net: nn.Module, loader: DataLoader[tuple[Tensor, ...]], message: Message | None) -> None:
        """Train one epoch, with masks if there is a message that asks for them."""
        if self.optimizer is None:
            cast(AutoEncoder, net).message = message
            quiet: Any = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing"), False)
            trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet)
            trainer.fit(cast(AutoEncoder, net), loader)
            return
        optimizer = self.optimizer(net.parameters())
        if message is not None:
            learn_masks(optimizer, net, message, steps=len(loader))
        net.train()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    def evaluate(self, state: Any) -> float:
        """Return the accuracy, or the loss of the autoencoder."""
        net, (x, y) = self.network(), self.test()
        net.load_state_dict(state)
        with torch.no_grad():
            output = net.eval()(x)
        return float(output) if self.optimizer is None else float((output.argmax(1) == y).float().mean())

    def run(self, kind: str, seed: int) -> str:
        """Run all rounds, and return a row of the table."""
        torch.manual_seed(seed)
        random.seed(seed)  # Flower samples clients by it
        client = ClientApp(mods=[] if kind == "plain" else [compress_uplink])

        @client.train()
        def _(message: Message, context: Context) -> Message:
            net = self.network()
            net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
            data = TensorDataset(*self.rows(int(context.node_config["partition-id"])))
            self.train(net, DataLoader(data, BATCH, shuffle=True), message if kind.startswith("fedmrn") else None)
            metrics = MetricRecord({"num-examples": len(data)})
            return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)

        began, grid = time.process_time(), LocalGrid(client, CLIENTS, {})
        strategy = KINDS[kind](FedAvg(fraction_train=self.share, fraction_evaluate=0.0))
        first = ArrayRecord(self.network().state_dict())
        result = strategy.start(cast(Grid, grid), first, num_rounds=self.rounds)
        seconds, found = time.process_time() - began, self.evaluate(result.arrays.to_torch_state_dict())
        return f"{kind} | {found:.4f} | {np.mean(grid.reply_bytes):,.0f} | {seconds:.1f} |"


def apps(cifar10: Path, fashion: Path) -> dict[str, App]:
    """Return the apps by name."""
    sgd = partial(torch.optim.SGD, momentum=0.9)
    colour, grey = partial(images, cifar10), partial(images, fashion)

    def part(rows: Rows, chosen: Any) -> Rows:
        return rows[0][chosen], rows[1][chosen]

    def strided(load: Callable[[str, int], Rows], client: int) -> Rows:
        return part(load("train", 10000), slice(client, None, CLIENTS))

    def skewed(client: int) -> Rows:
        rows = grey("train", 10000)
        return part(rows, by_label(rows[1], client))

    small, wide = ((3, 6, 16), (400, 120, 84, 10)), ((1, 16, 32), (512, 128, 10))
    drawn, adamw = (lambda client: sentences(1280, 100 + client)), partial(torch.optim.AdamW, lr=5e-5)
    return {
        "quickstart": App(
            partial(Images, *small),
            partial(sgd, lr=0.1),
            partial(strided, colour),
            partial(colour, "test", 4000),
            5,
            0.5,
        ),
        "advanced": App(partial(Images, *wide), partial(sgd, lr=0.01), skewed, partial(grey, "test", 4000), 3, 0.5),
        "huggingface": App(Sentences, adamw, drawn, partial(sentences, 1000, 99), 4, 0.3),
        "lightning": App(AutoEncoder, None, partial(strided, grey), partial(grey, "test", 4000), 3, 0.5),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cifar10", type=Path)
    parser.add_argument("fashion_mnist", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[10])
    parser.add_argument("--apps", nargs="+", choices=["quickstart", "advanced", "huggingface", "lightning"])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in ("flwr", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print(
        "| app | seed | method | accuracy or loss | bytes of a reply | processor seconds |\n|---|---|---|---|---|---|"
    )
    for name, app in apps(arguments.cifar10, arguments.fashion_mnist).items():
        for seed in arguments.seeds if name in (arguments.apps or [name]) else ():
            for kind in KINDS:
                print(f"| {name} | {seed} | {app.run(kind, seed)}", flush=True)


if __name__ == "__main__":
    main()
