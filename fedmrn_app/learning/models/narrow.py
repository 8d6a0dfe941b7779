"""Parts of models that clients can train in a narrower version (Deng, Qiao and Mahdavi, section 5.1).

A narrower model has a share of the channels, or units, of every layer except the last. Static batch norm keeps no
running statistics, which clients of different widths could not average.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

from torch import Tensor, nn

BatchNorm = Literal["tracked", "static"]


def narrowed(channels: int, width: float) -> int:
    """Return the number of channels of a layer in a model of a width, 0 < width <= 1."""
    return math.ceil(channels * width)


class Scaler(nn.Module):
    """Division by the width in training: sums over fewer channels keep their size (Diao et al. 2021, HeteroFL)."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Return x / width in training and x in evaluation."""
        return x / self.width if self.training and self.width != 1 else x


def batch_norm(channels: int, kind: BatchNorm) -> nn.BatchNorm2d:
    """Return batch norm; a `static` one normalizes by the statistics of the batch, also in evaluation.

    Raises:
        ValueError: the kind is unknown.
    """
    if kind not in get_args(BatchNorm):
        raise ValueError(f"norm={kind} is not one of {', '.join(get_args(BatchNorm))}")
    return nn.BatchNorm2d(channels, track_running_stats=kind == "tracked")
