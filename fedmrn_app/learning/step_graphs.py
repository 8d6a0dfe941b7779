"""CUDA graphs of the passes through a model: starting the kernels of a small model takes longer than running them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_STEPS = 30  # eager passes of a batch's shape before its graph is recorded, which takes about as long
_GRAPHS = 2  # of a model, since each one holds its activations: of full batches, and of one size of last batches
_ELEMENTS = 1 << 18  # of a batch's inputs, at most; larger batches keep a GPU busy without graphs

Passes = Callable[[Tensor, Tensor], Tensor]  # computes gradients in place and returns the loss


@dataclass(frozen=True)
class _Recorded:
    """A graph, and the memory that it reads and writes in every replay."""

    graph: torch.cuda.CUDAGraph
    x: Tensor
    y: Tensor
    loss: Tensor
    grads: Sequence[Tensor | None]


class StepGraphs:
    """The forward and backward passes of one model, recorded for each shape of a batch after some eager passes.

    The kernels, and so the results, are those of the eager passes. Only for passes that run the same operations on the
    same memory for each batch of a shape; where PyTorch cannot record them, they stay eager.

    Attributes:
        parameters: those whose gradients the passes set anew.
        replays: number of passes that were replayed.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        self.replays = 0
        self._seen: Counter[Any] = Counter()
        self._recorded: dict[Any, _Recorded] = {}
        self._works = True

    def run(self, passes: Passes, x: Tensor, y: Tensor, *settings: object) -> Tensor:
        """Compute the gradients of a batch, and return its loss.

        Args:
            passes: computes gradients and loss eagerly.
            x: the inputs of the batch, on the GPU.
            y: its targets, on the GPU.
            settings: everything else that `passes` depends on.
        """
        key = (x.shape, x.dtype, y.shape, y.dtype, *settings)
        recorded = self._recorded.get(key)
        if recorded is None and self._works and x.numel() <= _ELEMENTS and len(self._recorded) < _GRAPHS:
            self._seen[key] += 1
            recorded = self._record(key, passes, x, y) if self._seen[key] > _STEPS else None
        if recorded is None:
            return passes(x, y)
        recorded.x.copy_(x)
        recorded.y.copy_(y)
        recorded.graph.replay()
        for parameter, grad in zip(self.parameters, recorded.grads, strict=True):
            parameter.grad = grad
        self.replays += 1
        return recorded.loss

    def _record(self, key: object, passes: Passes, x: Tensor, y: Tensor) -> _Recorded | None:
        graph, x, y = torch.cuda.CUDAGraph(), x.clone(), y.clone()
        try:
            with torch.cuda.graph(graph):
                loss = passes(x, y)
        except RuntimeError as error:
            self._works = False
            logging.getLogger(__name__).info("the passes are not recorded: %s", str(error).splitlines()[0])
            return None
        grads = [parameter.grad for parameter in self.parameters]
        return self._recorded.setdefault(key, _Recorded(graph, x, y, loss, grads))
