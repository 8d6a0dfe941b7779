"""Write 6,000 rows of Fashion-MNIST as data of one's own, for searches whose runs take minutes; and a small CNN.

    python -m scripts.tools.small_fashion FASHION_MNIST FOLDER

writes FOLDER/heldout.npz, which is evaluated on 5,000 other training rows, and FOLDER/test.npz, which is evaluated on
the test split. Both train on the first 6,000 rows. `net` has 61,098 weights:

    fedmrn dataset=own dataset.path=FOLDER/heldout.npz model=own model._target_=scripts.tools.small_fashion.net
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
from torch import nn

from fedmrn_app.config.build import resolve_from_data
from fedmrn_app.config.compose import compose_values, quote_override

ROWS, HELD_OUT = 6000, 5000


def net(channels: int, classes: int) -> nn.Module:
    """Return three blocks of 3x3 convolution, batch norm, ReLU and pooling, and two linear layers, for 28x28 inputs."""
    widths = (channels, 16, 32, 64)
    blocks: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        blocks += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(576, 64), nn.ReLU(), nn.Linear(64, classes))


def main() -> None:
    source, folder = sys.argv[1], Path(sys.argv[2])
    _, _, task = resolve_from_data(compose_values(["dataset=fashion_mnist", quote_override("dataset.path", source)]))
    train, test = (task.load(split) for split in ("train", "test"))
    folder.mkdir(parents=True, exist_ok=True)
    rest = slice(ROWS, ROWS + HELD_OUT)
    for name, x, y in (
        ("heldout", train.x[rest], train.y[rest]),
        ("test", test.x, test.y),
    ):
        np.savez_compressed(
            folder / f"{name}.npz",
            x=np.asarray(train.x[:ROWS]), y=np.asarray(train.y[:ROWS]),
            x_test=np.asarray(x), y_test=np.asarray(y),
        )  # fmt: skip


if __name__ == "__main__":
    main()
