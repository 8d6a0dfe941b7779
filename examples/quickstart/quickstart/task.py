"""The network, the data, and the training and evaluation loops; they are the same with and without compression."""

import io
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import torch
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx, Strategy
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

RunConfig = Mapping[str, Any]

SHARES = 100  # number of random parts of the images; a client has some of them
SIDE = 32  # pixels; smaller images are enlarged or padded
STRATEGIES: Mapping[str, Callable[[], Strategy]] = {
    "fedavg": lambda: FedAvg(fraction_evaluate=0.0),
    "fedadam": lambda: FedAdam(fraction_evaluate=0.0, eta=0.01),
    "fedprox": lambda: FedProx(fraction_evaluate=0.0, proximal_mu=0.1),
}


class Net(nn.Module):
    """Two convolutions and three linear layers, as in Flower's quickstart."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (rows, 10) for images (rows, channels, 32, 32)."""
        x = nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.fc1(x.view(-1, 16 * 5 * 5)))
        y: Tensor = self.fc3(torch.relu(self.fc2(x)))
        return y


def new_net(config: RunConfig) -> Net:
    """Return a network whose initial weights follow from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config["seed"])
        return Net(load_rows(config["data-path"], "test", 0, 1000)[0].shape[1])


def proximal_term(net: Net, mu: float) -> Callable[[], Tensor]:
    """Return FedProx's term of the loss: mu / 2 times the squared distance from the current weights."""
    first = [parameter.detach().clone() for parameter in net.parameters()]
    return lambda: mu / 2 * sum(((p - q) ** 2).sum() for p, q in zip(net.parameters(), first, strict=True))


def train(
    net: Net,
    loader: DataLoader[tuple[Tensor, ...]],
    epochs: int,
    optimizer: torch.optim.Optimizer,
    penalty: Callable[[], Tensor] | None = None,
) -> float:
    """Train the network, with `penalty` added to the loss, and return the mean loss."""
    net.train()
    total = 0.0
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss = loss if penalty is None else loss + penalty()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item()
    return total / max(1, epochs * len(loader))


def evaluate(net: Net, x: Tensor, y: Tensor) -> float:
    """Return the accuracy."""
    net.eval()
    with torch.no_grad():
        right = sum(int((net(a).argmax(1) == b).sum()) for a, b in zip(x.split(500), y.split(500), strict=True))
    return right / len(y)


def client_loader(config: RunConfig, client: int, clients: int, server_round: int) -> DataLoader[tuple[Tensor, ...]]:
    """Return one client's training images, in batches whose order follows from the seed and the round."""
    mine = range(client, SHARES - SHARES // 10 if config["hold-out"] else SHARES, clients)
    rows = [load_rows(config["data-path"], "train", share, SHARES) for share in mine]
    x, y = (torch.cat(parts)[: config["images-per-client"] or None] for parts in zip(*rows, strict=True))
    order = torch.Generator().manual_seed(1000 * config["seed"] + server_round)
    return DataLoader(TensorDataset(x, y), config["batch-size"], shuffle=True, generator=order)


def evaluation_rows(config: RunConfig) -> tuple[Tensor, Tensor]:
    """Return the test images; with `hold-out` the last tenth of the training images, which no client has."""
    if not config["hold-out"]:
        return load_rows(config["data-path"], "test", 0, 1)
    rows = [load_rows(config["data-path"], "train", share, SHARES) for share in range(SHARES - SHARES // 10, SHARES)]
    x, y = (torch.cat(parts) for parts in zip(*rows, strict=True))
    return x, y


@cache
def load_rows(data_path: str, split: str, share: int, shares: int) -> tuple[Tensor, Tensor]:
    """Return one of `shares` random parts of a split.

    Images are float32 (rows, channels, 32, 32), labels int64 (rows,).
    """
    if not data_path:
        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.target))
        chosen = (order[360:] if split == "train" else order[:360])[share::shares]
        pixels = np.kron(digits.images[chosen], np.ones((1, 4, 4))) * (255 / 16)  # 8x8 to 32x32
        return _tensors(pixels[:, None], digits.target[chosen])
    file = _table(data_path, split)
    order = np.random.default_rng(0).permutation(file.num_rows)[share::shares]
    images = file.column("img" if "img" in file.column_names else "image").take(order).to_pylist()
    decoded = np.stack([np.asarray(Image.open(io.BytesIO(image["bytes"]))) for image in images])
    decoded = decoded[:, None] if decoded.ndim == 3 else decoded.transpose(0, 3, 1, 2)
    border = (SIDE - decoded.shape[-1]) // 2
    padded = np.pad(decoded, ((0, 0), (0, 0), (border, border), (border, border)))
    return _tensors(padded, file.column("label").take(order).to_numpy())


@cache
def _table(data_path: str, split: str) -> pyarrow.Table:
    return parquet.read_table(next(Path(data_path).glob(f"{split}-*.parquet")))


def _tensors(pixels: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(pixels.astype(np.float32) / 127.5 - 1), torch.from_numpy(labels.astype(np.int64))
