"""Pruning by magnitude: set all but a number of the largest |w| to zero, and keep them there."""

from __future__ import annotations

import torch
from torch import Tensor


class Pruner:
    """Prunes one vector of weights, float32 (d,), in place, first those that `kept`, bool (d,), does not hold."""

    def __init__(self, weights: Tensor, kept: Tensor | None = None) -> None:
        self._weights = weights
        self._mask = torch.ones_like(weights) if kept is None else kept.to(weights.dtype)

    def prune(self, count: int) -> None:
        """Keep the `count` largest |w| of all weights as they are now, and multiply the others by zero."""
        kept = torch.topk(self._weights.abs(), count, sorted=False).indices
        self._mask.zero_()
        self._mask[kept] = 1
        self.apply()

    def apply(self) -> None:
        """Multiply the weights that `prune` removed last by zero."""
        self._weights.mul_(self._mask)
