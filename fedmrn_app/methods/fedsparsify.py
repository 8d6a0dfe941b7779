"""FedSparsify: clients prune the model by magnitude while they train, and upload the weights that are left.

Stripelis et al. 2022, "Federated Progressive Sparsification (Purge, Merge, Tune)+". The sparsity grows over the local
steps along the cubic curve of Zhu and Gupta 2017, "To Prune, or Not to Prune", Equation 1; a pruned weight stays zero
for the rest of the local training. The server averages the sparse models.

This is the one sentence that FedMRN's paper has about it. In the authors' own code (dstripelis/FedSparsify) sparsity
grows over the rounds of the federation: `schedule: rounds` is its FedSparsify-Local, whose models are averaged by
numbers of samples. Weights that are zero in the global model stay zero in the local training, after which the client
prunes once, to the sparsity of the round. As clients prune different weights, the mean has fewer zeros than a reply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedmrn_app.kernels.pruning import Pruner
from fedmrn_app.layout import Float32Array
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.methods.method import (
    LocalResult,
    LocalTraining,
    Method,
    MethodConfig,
    RunOptions,
    ServerState,
    TrainContext,
    conflict,
)
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.methods.topk import LargestElements, kept_count, ratio_of
from fedmrn_app.validation import Count, Share
from fedmrn_app.wire.mask_model import Motion, SideInfoSource, softsign

_MORE = 1.25  # times as many weights as a size is expected to hold, so that the codec, which knows the size, decides


@dataclass(frozen=True)
class FedSparsify(MethodConfig):
    """FedSparsify.

    Attributes:
        ratio: fraction of the weights that is left after the last pruning.
        prunings: largest number of prunings in one local training; without effect with `schedule: rounds`.
        schedule: what sparsity grows over: the local steps, anew in each round, or the rounds of the run.
    """

    name = "fedsparsify"
    code = 9

    ratio: Share = 0.03
    prunings: Count = 20
    schedule: Literal["local", "rounds"] = "local"

    def build(self, run: RunOptions) -> Method:
        """Return training with pruning, a codec of sparse models, and their mean as global model."""
        by_round = self.schedule == "rounds"
        if by_round and run.budget is not None:
            raise conflict("strategy.schedule", "rounds", "fixes the size of replies; set uplink.budget=null")
        if by_round and not run.rounds:
            raise conflict("strategy.schedule", "rounds", "needs the number of rounds, which is not known here")
        return Method(
            name=self.name,
            code=self.code,
            # a reply of the first rounds holds nearly all weights
            codec=SparseModel(1.0 if by_round else self.ratio, run.coder, run.budget is not None),
            training=(
                RoundPrunedTraining(self.ratio, run.rounds) if by_round else PrunedTraining(self.ratio, self.prunings)
            ),
            server=MeanModel(),
            packing=run.downlink,
        )


@dataclass(frozen=True)
class PrunedTraining(LocalTraining):
    """SGD with pruning in regular intervals; `x` is the sparse model."""

    ratio: float
    prunings: int

    def train(self, model: FlatModel, local: TrainContext) -> LocalResult:
        """Train and prune in turns, then prune to the final sparsity."""
        steps, bits = len(local.batches), local.context.bits
        ratio = self.ratio if bits is None else min(_MORE * ratio_of(bits), 1.0)
        every = -(-steps // self.prunings)
        pruner = Pruner(model.weights)

        def prune_weights(step: int) -> None:
            if step % every == 0:
                pruner.prune(kept_count(model.weights.numel(), 1 - self.sparsity(step / steps, ratio)))
            else:
                pruner.apply()

        loss = local.sgd(model, before_step=prune_weights)
        pruner.apply()
        pruner.prune(kept_count(model.weights.numel(), ratio))
        return LocalResult(model.weights.cpu().numpy(), loss)

    def sparsity(self, progress: float, ratio: float) -> float:
        """Return the fraction of pruned weights at `progress` = t / S of a training that ends with `ratio` of them."""
        return sparsity_at(progress, ratio)


@dataclass(frozen=True)
class RoundPrunedTraining(LocalTraining):
    """SGD on the weights that are not zero in the global model, and one pruning at its end; `x` is the sparse model."""

    ratio: float
    rounds: int

    def train(self, model: FlatModel, local: TrainContext) -> LocalResult:
        """Train with the global model's mask, then prune to the sparsity of the round."""
        pruner = Pruner(model.weights, model.weights != 0)
        loss = local.sgd(model, before_step=lambda _: pruner.apply())
        pruner.apply()
        pruner.prune(kept_count(model.weights.numel(), 1 - sparsity_at(local.server_round / self.rounds, self.ratio)))
        return LocalResult(model.weights.cpu().numpy(), loss)


def sparsity_at(progress: float, ratio: float) -> float:
    """Return the fraction of pruned weights at a share of the way from none to all but `ratio` of them."""
    return (1 - ratio) * (1 - (1 - progress) ** 3)


class SparseModel(LargestElements):
    """Body: the weights that are left, which are the largest ones, see `wire/sparse.py`."""

    def side_info(self, context: SharedContext) -> Callable[[], SideInfoSource]:
        """Return a function for the side information: weights that are large in the global model are likely to stay."""
        weights = context.layout.split(context.vector)

        def found() -> SideInfoSource:
            sizes = softsign(context.layout, lambda tensor, part: weights[tensor][part])
            return Motion(context.layout, lambda part, runs: part.view(sizes)[runs])

        return found


class MeanModel(ServerState):
    """The mean of the clients' models is the next global model."""

    averages_updates: ClassVar[bool] = False

    def combine(self, vector: Float32Array, mean: Float32Array, replies: int) -> Float32Array:
        """Return the mean."""
        return mean
