"""FedSparsify: clients prune the model by magnitude while they train and upload what is left (Stripelis et al. 2022).

Sparsity grows over the local steps along the cubic curve of Zhu and Gupta (2017) to its final value; a pruned weight
stays at zero for the rest of the local training. The server averages the sparse models.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from fedmrn_app.errors import ConfigError
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.methods import ClientUpdate, Common, LocalTask, Method
from fedmrn_app.methods.topk import kept_count
from fedmrn_app.noise import Float32Array
from fedmrn_app.shapes import Shapes, sizes_of
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.masks import Evidence, softsign
from fedmrn_app.wire.sparse import max_sparse_bytes, pack_sparse, unpack_sparse


@dataclass(frozen=True)
class FedSparsify(Method):
    """Body: the sparse weights themselves, see `wire/sparse.py`."""

    name = "fedsparsify"
    code = 9

    ratio: float = 0.03  # share of the weights that is left in the end
    prunings: int = 20  # at most, in one local training

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ConfigError(f"strategy.ratio={self.ratio}: must be above 0 and at most 1")
        if self.prunings < 1:
            raise ConfigError(f"strategy.prunings={self.prunings}: must be at least 1")

    def train(self, model: FlatModel, task: LocalTask) -> ClientUpdate:
        """Train and prune in turn, then prune to the final sparsity and encode."""
        start = time.perf_counter()
        steps = len(task.batches)
        every = -(-steps // self.prunings)
        mask = torch.ones_like(model.weights)

        def prune_weights(step: int) -> None:
            if step % every == 0:
                _prune(model, mask, 1 - self.sparsity(step / steps))
            model.weights.mul_(mask)

        loss = task.sgd(model, before_step=prune_weights)
        model.weights.mul_(mask)
        _prune(model, mask, self.ratio)
        model.weights.mul_(mask)
        trained = time.perf_counter()
        body = pack_sparse(model.weights.cpu().numpy(), partial(_evidence, task.common), self.coder)
        return ClientUpdate(body, loss, trained - start, time.perf_counter() - trained)

    def sparsity(self, progress: float) -> float:
        """Share of pruned weights at `progress` = t / S of the local training."""
        return (1 - self.ratio) * (1 - (1 - progress) ** 3)

    def decode(self, body: Body, seed: int, common: Common) -> Float32Array:
        """Return the client's sparse weights."""
        return unpack_sparse(body, common.count, partial(_evidence, common))

    def combine(self, vector: Float32Array, mean: Float32Array, replies: int) -> Float32Array:
        """The mean of the clients' models is the new global model."""
        return mean

    def max_body_bytes(self, shapes: Shapes) -> int:
        """32 bits for each value and one for whether there is one."""
        count = sum(sizes_of(shapes))
        return max_sparse_bytes(count, kept_count(count, self.ratio))


def _evidence(common: Common) -> Evidence:
    """What is large in the global model is likely to be left in the client's."""
    return Evidence(common.shapes, np.abs(softsign(common.vector, common.shapes)))


def _prune(model: FlatModel, mask: torch.Tensor, ratio: float) -> None:
    """Leave only the largest |w| in `mask`, `ratio` of all."""
    count = kept_count(mask.numel(), ratio)
    kept = torch.topk(model.weights.abs(), count, sorted=False).indices
    mask.zero_()
    mask[kept] = 1
