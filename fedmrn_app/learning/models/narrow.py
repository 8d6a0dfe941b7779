"""What a model needs so that clients can train a narrower version of it (Deng, Qiao and Mahdavi, section 5.1).

A narrower model has a share of the channels, or units, of every layer but the last. Normalisation keeps no running
statistics, which clients of different widths could not average, and a scaler makes up for the missing channels.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

from torch import Tensor, nn

BatchNorm = Literal["tracked", "static"]


def narrowed(channels: int, width: float) -> int:
    """How many of a layer's channels a model has that is `width` as wide, 0 < width <= 1."""
    return math.ceil(channels * width)


class Scaler(nn.Module):
    """Divides by the width in training: sums over fewer channels keep their size (Diao et al. 2021, HeteroFL)."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Return x / width in training and x in evaluation."""
        return x / self.width if self.training and self.width != 1 else x


def batch_norm(channels: int, kind: BatchNorm) -> nn.BatchNorm2d:
    """Batch norm; a `static` one normalises by the statistics of the batch at hand, in evaluation too.

    Raises:
        ValueError: there is no such kind.
    """
    if kind not in get_args(BatchNorm):
        raise ValueError(f"norm={kind} is not one of {', '.join(get_args(BatchNorm))}")
    return nn.BatchNorm2d(channels, track_running_stats=kind == "tracked")
