"""The 8x8 digits, and a LightningModule that learns masks if a message asks for them."""

import logging
import warnings
from collections.abc import Mapping
from typing import Any

import lightning
import numpy as np
import torch
from flwr.app import Message
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedmrn_app.plugin import learn_masks

RunConfig = Mapping[str, Any]


class Digits(lightning.LightningModule):
    """Two linear layers, optimized by AdamW.

    Args:
        config: the run config.
        message: the message that asked for the training; None if no masks are learned.
    """

    def __init__(self, config: RunConfig, message: Message | None = None) -> None:
        super().__init__()
        self.config, self.message = config, message
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config["seed"])
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """Return the mean loss of a batch."""
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW, which learns masks for the number of steps that the trainer will take."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.config["learning-rate"])
        if self.message is None:
            return optimizer
        return learn_masks(optimizer, self, self.message, steps=int(self.trainer.estimated_stepping_batches))


def fit(model: Digits, client: int, clients: int, server_round: int) -> int:
    """Train on one client's rows, and return their number."""
    x, y = rows("train")
    x, y = x[client::clients], y[client::clients]
    order = torch.Generator().manual_seed(1000 * server_round + client)
    loader = DataLoader(TensorDataset(x, y), model.config["batch-size"], shuffle=True, generator=order)
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch.accelerators.cuda"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hints about workers and logging
        lightning.Trainer(
            max_epochs=model.config["local-epochs"], accelerator="cpu", devices=1, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        ).fit(model, loader)  # fmt: skip
    return len(y)


def evaluate(model: Digits) -> float:
    """Return the accuracy on the test images."""
    x, y = rows("test")
    with torch.no_grad():
        return float((model.net.eval()(x).argmax(1) == y).float().mean())


def rows(split: str) -> tuple[Tensor, Tensor]:
    """Return images, float32 (rows, 64), and digits, int64 (rows,); a fifth of them is the test split."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    chosen = order[360:] if split == "train" else order[:360]
    return torch.from_numpy(digits.data[chosen].astype(np.float32) / 16), torch.from_numpy(digits.target[chosen])
