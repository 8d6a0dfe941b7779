"""FedSparsify: clients prune the model by magnitude while they train and upload what is left (Stripelis et al. 2022).

Sparsity grows over the local steps along the cubic curve of Zhu and Gupta (2017) to its final value; a pruned weight
stays at zero for the rest of the local training. The server averages the sparse models.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from fedmrn_app.kernels.pruning import Pruner
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.methods.method import (
    Codec,
    LocalTraining,
    Method,
    MethodConfig,
    RunOptions,
    ServerState,
    TrainContext,
    Trained,
)
from fedmrn_app.methods.shared_context import SharedContext, softsign
from fedmrn_app.methods.topk import kept_count
from fedmrn_app.validation import Count, Share
from fedmrn_app.wire.body import Body, Coder
from fedmrn_app.wire.mask_model import SideInformation
from fedmrn_app.wire.sparse import max_sparse_bytes, pack_sparse, unpack_sparse


@dataclass(frozen=True)
class PrunedTraining(LocalTraining):
    """SGD and pruning by turns; `x` is the sparse model."""

    ratio: float
    prunings: int

    def train(self, model: FlatModel, local: TrainContext) -> Trained:
        """Train and prune by turns, then prune to the final sparsity."""
        steps = len(local.batches)
        every = -(-steps // self.prunings)
        pruner = Pruner(model.weights)

        def prune_weights(step: int) -> None:
            if step % every == 0:
                pruner.prune(kept_count(model.weights.numel(), 1 - self.sparsity(step / steps)))
            else:
                pruner.apply()

        loss = local.sgd(model, before_step=prune_weights)
        pruner.apply()
        pruner.prune(kept_count(model.weights.numel(), self.ratio))
        return Trained(model.weights.cpu().numpy(), loss)

    def sparsity(self, progress: float) -> float:
        """Share of pruned weights at `progress` = t / S of the local training."""
        return (1 - self.ratio) * (1 - (1 - progress) ** 3)


@dataclass(frozen=True)
class SparseModel(Codec):
    """Body: the sparse weights themselves, see `wire/sparse.py`."""

    ratio: float
    coder: Coder

    def encode(self, x: Float32Array, known: SharedContext, seed: int, private_seed: int) -> Body:
        """Encode the weights that are not zero."""
        return pack_sparse(x, partial(_side, known), self.coder)

    def decode(self, body: Body, known: SharedContext, seed: int) -> Float32Array:
        """Return the client's sparse weights."""
        return unpack_sparse(body, known.count, partial(_side, known))

    def max_bytes(self, layout: Layout) -> int:
        """32 bits for each value and one for whether there is one."""
        return max_sparse_bytes(layout.count, kept_count(layout.count, self.ratio))


class MeanModel(ServerState):
    """The mean of the clients' models is the new global model."""

    averages_updates = False

    def combine(self, vector: Float32Array, mean: Float32Array, replies: int) -> Float32Array:
        """Return the mean."""
        return mean


@dataclass(frozen=True)
class FedSparsify(MethodConfig):
    """Options.

    Attributes:
        ratio: share of the weights that is left in the end.
        prunings: at most, in one local training.
    """

    name = "fedsparsify"
    code = 9

    ratio: Share = 0.03
    prunings: Count = 20

    def build(self, run: RunOptions) -> Method:
        """Training with pruning, sparse models, their mean."""
        return Method(
            self.name,
            self.code,
            SparseModel(self.ratio, run.coder),
            PrunedTraining(self.ratio, self.prunings),
            MeanModel(),
            packing=run.downlink,
        )


def _side(known: SharedContext) -> SideInformation:
    """What is large in the global model is likely to be left in the client's."""
    return SideInformation(known.layout, np.abs(softsign(known.vector.copy(), known.layout)))
