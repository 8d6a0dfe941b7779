"""Sub-model training: a client gets, trains and returns only a part of the weights (Deng, Qiao and Mahdavi).

"On the Convergence and Stability of Distributed Sub-model Training", Algorithms 1 and 2. A client of capacity beta
holds the share beta of each tensor's weights, or of each layer's channels, another part in each round:

- `random`: every weight with probability beta; of channels exactly the share beta, drawn anew. Layers with equally many
  channels hold the same ones (`draws: aligned`), so that what an identity shortcut adds are the same channels; or each
  layer draws its own, in an order of its own (`independent`), as the code of FedRolex (Alam et al. 2022) does;
- `rolling`: a window of consecutive weights or channels of each tensor. The paper's window is of the whole flat vector,
  which would leave whole layers out, and nothing would get through. The windows are
  - `disjoint`: for each capacity R = ceil(1 / beta) that share nothing, in an order that is shuffled every R rounds;
  - `shuffled`: the paper's. There is one R and one shuffled order for all; in a round all windows begin at the same
    place j / R of the tensor, and the smaller ones lie in the larger ones. How R and the number of weights go together
    the paper leaves open: `starts`, by default ceil(1 / the least capacity), with which every weight has its turn;
  - `fedrolex`: as there, all begin at the number of rounds modulo the tensor's or layer's size, one further each time;
- `static`: always the first window (HeteroFL, Diao et al. 2021);
- `full`: all weights, whatever the capacity, which is FedAvg.

By `weight`, the theory's granularity, the client trains the full model, in which the other weights are zero. By
`channel`, that of the experiments (section 5.1), it trains a model with so many channels a layer, which takes less time
and memory; all parameters are weights then, and about beta^2 of them are held.

Both ways only the held values travel; which these are follows from the seed or the round. Weights that a client does
not hold count as unchanged in the mean (`fill`, the paper's), or the mean of a weight is over those who hold it
(`coverage`, FedRolex).

With `output_lr`, the algorithms' 1 / L, the last round is their output step: from the weights as they are each client
takes the gradient over all its samples, at its random part of them, or at each of its windows in turn, of which the
mean counts; the server subtracts the mean over the clients, times `output_lr`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch

from fedmrn_app.errors import ConfigError
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.learning.flat import FlatModel, to_tensor
from fedmrn_app.learning.sgd import full_gradient
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
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.methods.submodel_parts import Assignment, Draws, Granularity, Masking, PartOfModel, Windows
from fedmrn_app.validation import Count, Positive, Range, Share
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.primitives import pack_floats, unpack_floats

Aggregate = Literal["fill", "coverage"]


@dataclass(frozen=True)
class HeldTraining(LocalTraining):
    """Plain SGD on the held weights; if there are others in the model, they are zero and stay so."""

    part: PartOfModel
    output_lr: float | None = None

    def train(self, model: FlatModel, local: TrainContext) -> Trained:
        """Train; `x` is the update, zero where nothing is held."""
        if local.server_round == self.part.output_round:
            return self.output_step(model, local)
        if self.part.rearranges:
            return self.train_rearranged(model, local)
        held = local.known.held
        mask: torch.Tensor | None = None if held is None else to_tensor(held.astype(np.float32)).to(model.device)
        first = model.weights.clone()

        def update_held(step: int) -> None:
            assert mask is not None
            model.weights.add_(model.weight_grads.mul_(mask), alpha=-local.lr)

        loss = local.sgd(model, update=None if mask is None else update_held)
        return Trained((model.weights - first).cpu().numpy(), loss)

    def train_rearranged(self, model: FlatModel, local: TrainContext) -> Trained:
        """Train the same weights, each layer's channels in an order of its own."""
        places = torch.from_numpy(self.part.arrangement(model.layout, local.seed)).to(model.device)
        model.weights.copy_(model.weights[places])
        first = model.weights.clone()
        loss = local.sgd(model)
        update = torch.empty_like(first)
        update[places] = model.weights - first
        return Trained(update.cpu().numpy(), loss)

    def output_step(self, model: FlatModel, local: TrainContext) -> Trained:
        """One step along the mean of the masked gradients over all the client's samples; the dense part stays."""
        assert self.output_lr is not None
        weights, dense = model.weights.clone(), model.dense.clone()
        total, losses = torch.zeros_like(weights), []
        for held in self.part.output_masks(model.layout, local.client, local.server_round, local.seed):
            mask = to_tensor(held.astype(np.float32)).to(model.device)
            torch.mul(weights, mask, out=model.weights)
            gradient, loss = full_gradient(model, local.batches, local.precision, local.weight_decay)
            total.add_(gradient.mul_(mask))
            losses.append(loss)
        model.dense.copy_(dense)
        return Trained(total.mul_(-self.output_lr / len(losses)).cpu().numpy(), sum(losses) / len(losses))


class HeldFloats(Codec):
    """Body: the update of the held weights as float32, in the weights' order."""

    def encode(self, x: Float32Array, known: SharedContext, seed: int, private_seed: int) -> Body:
        """Leave out what is not held."""
        return Body(pack_floats(x if known.held is None else x[known.held]))

    def decode(self, body: Body, known: SharedContext, seed: int) -> Float32Array:
        """Return the update, zero where nothing is held."""
        body.must_be_plain()
        held = known.held_weights()
        update = np.zeros(known.count, np.float32)
        update[held] = unpack_floats(body.data, int(np.count_nonzero(held)))
        return update

    def max_bytes(self, layout: Layout) -> int:
        """32 bits per weight that is held; a client may hold all."""
        return 4 * layout.count


@dataclass(frozen=True)
class BoundedWeights(ServerState):
    """The weights, in a ball of a radius if there is one (the paper's P_W)."""

    averages_holders: bool = False
    radius: float | None = None

    def combine(self, vector: Float32Array, mean: Float32Array, replies: int) -> Float32Array:
        """Add the mean update and project onto the ball."""
        moved = vector + mean
        norm = np.linalg.norm(moved.astype(np.float64)) if self.radius is not None else 0.0
        return moved * np.float32(self.radius / norm) if self.radius is not None and norm > self.radius else moved


@dataclass(frozen=True)
class SubModel(MethodConfig):
    """Options.

    Attributes:
        masking: which part of the model a client holds.
        granularity: single weights, or channels.
        aggregate: what is not held counts as unchanged in the mean, or does not count.
        capacities: each client has one of them, drawn by the run's seed.
        assignment: whether it keeps its capacity, or draws one in each round, as FedRolex's published commands do.
        windows: of `rolling`, see above.
        starts: R of `shuffled` windows; None for as few as reach every weight.
        draws: of `random` by channel: the same for layers with equally many channels, or each layer's own.
        radius: of the ball that the weights are projected onto after each round; None for no projection.
        output_lr: step size of the output step, which is the last round then; None for no such step.
    """

    name = "submodel"
    code = 12

    masking: Masking = "rolling"
    granularity: Granularity = "weight"
    aggregate: Aggregate = "fill"
    capacities: Annotated[Sequence[Share], Range(least=1)] = (1.0, 0.5, 0.25, 0.125, 0.0625)
    assignment: Assignment = "fixed"
    windows: Windows = "disjoint"
    starts: Count | None = None
    draws: Draws = "aligned"
    radius: Positive | None = None
    output_lr: Positive | None = None

    def build(self, run: RunOptions) -> Method:
        """A part of the model down, trained, and up; by channel all parameters, for a channel has biases besides."""
        self._check()
        output_round = None if self.output_lr is None else run.rounds
        part = PartOfModel(
            run.seed,
            self.masking,
            self.granularity,
            self.capacities,
            self.windows,
            self.starts,
            self.draws,
            self.assignment,
            output_round,
        )
        return Method(
            self.name,
            self.code,
            HeldFloats(),
            HeldTraining(part, self.output_lr),
            BoundedWeights(self.aggregate == "coverage", self.radius),
            part,
            whole_model=self.granularity == "channel",
            packing=run.downlink,
        )

    def _check(self) -> None:
        if self.output_lr is None:
            return
        said = f"strategy.output_lr={self.output_lr:g}"
        if self.granularity == "channel":
            raise ConfigError(f"{said}: the output step is of single weights; say strategy.granularity=weight or null")
        if self.masking == "rolling" and self.windows == "fedrolex":
            raise ConfigError(
                f"{said}: averages over all windows, which are as many as weights here; say strategy.windows=shuffled"
            )
