"""Pruning by magnitude: set all but a number of the largest |w| to zero, and keep them there."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Pruner(Protocol):
    """Prunes one vector of weights, float32 (d,), in place."""

    def prune(self, count: int) -> None:
        """Keep the `count` largest |w| as they are now, of all weights, and multiply the others by zero."""

    def apply(self) -> None:
        """Multiply the weights that were pruned the last time by zero, if there are any."""


class PlainPruner:
    """By PyTorch's operations, which define what is kept: of equal |w|, those that `torch.topk` takes."""

    def __init__(self, weights: Tensor) -> None:
        self._weights = weights
        self._mask = torch.ones_like(weights)

    def prune(self, count: int) -> None:
        """See `Pruner`."""
        kept = torch.topk(self._weights.abs(), count, sorted=False).indices
        self._mask.zero_()
        self._mask[kept] = 1
        self.apply()

    def apply(self) -> None:
        """See `Pruner`."""
        self._weights.mul_(self._mask)


def make_pruner(weights: Tensor) -> Pruner:
    """Return the fastest form there is where the weights are: a kernel on CPUs, else `PlainPruner`."""
    if weights.device.type == "cpu":
        from fedmrn_app.kernels.pruning_cpu import CPUPruner

        return CPUPruner(weights)
    return PlainPruner(weights)
