"""Sub-model training: a client receives, trains and returns only a part of the weights.

Deng, Qiao and Mahdavi, "On the Convergence and Stability of Distributed Sub-model Training", Algorithms 1 and 2. A
client of capacity beta holds the fraction beta of the weights of each tensor, or of the channels of each layer, in each
round another part (`masking`):

- `random`: single weights, each with probability beta; or exactly the fraction beta of the channels. With
  `draws: aligned`, layers with equally many channels hold the same ones, so that an identity shortcut adds the same
  channels. With `independent`, each layer draws its own, in an order of its own, as in the published code of FedRolex
  (Alam et al. 2022, "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction").
- `rolling`: a window of consecutive weights or channels of each tensor. The paper's window is one of the whole flat
  vector, which would leave out whole layers, so that no signal passes through. The windows are
  - `disjoint`: R = ceil(1 / beta) disjoint windows for each capacity, in an order that is shuffled every R rounds;
  - `shuffled`: as in the paper, one R and one shuffled order for all capacities. In a round all windows begin at the
    same place j / R of the tensor, so that smaller windows lie in larger ones. The paper leaves the relation of R and
    the number of weights open; R is `starts`, by default ceil(1 / smallest capacity), which reaches every weight;
  - `fedrolex`: all windows begin at the number of rounds modulo the size of the tensor or layer; in FedRolex's
    published code they roll the other way, `fedrolex_backward`.
- `static`: always the first window (HeteroFL, Diao et al. 2021).
- `full`: all weights at any capacity, which is FedAvg.

With granularity `weight`, that of the theory, the client trains the full model, in which all other weights are zero.
With `channel`, that of the experiments (section 5.1), it trains a model with fewer channels per layer, which takes less
time and memory; all parameters are weights then, and a client holds about beta^2 of them.

Only the values of held weights travel, in both directions; their places follow from the seed or the round. In the mean,
weights that a client does not hold count as unchanged (`aggregate: fill`, the paper's), or the mean of a weight is over
its holders (`coverage`, FedRolex's). With `label_rows: own`, as in FedRolex's published code, a client holds the rows
of the last layer that belong to labels of its samples; so its reply tells the server which labels those are.

With `output_lr`, which is 1 / L in the algorithms, the last round is their output step. Each client computes the
gradient over all its samples, masked with its random part, or the mean of the gradients masked with each of its
windows in turn; the server subtracts `output_lr` times the mean over the clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.learning.flat import FlatModel, to_tensor
from fedmrn_app.learning.sgd import full_gradient
from fedmrn_app.methods.contribution import Contribution, VectorContribution
from fedmrn_app.methods.method import (
    Codec,
    CodecLimits,
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
from fedmrn_app.methods.submodel_parts import PartOfModel, PartOptions, classifier_labels
from fedmrn_app.validation import Positive
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.primitives import pack_bits, pack_floats, packed_size, unpack_bits, unpack_floats


@dataclass(frozen=True, kw_only=True)
class SubModel(PartOptions, MethodConfig):
    """Sub-model training; the options of `PartOptions`, and these.

    Attributes:
        aggregate: whether weights that a client does not hold count as unchanged in the mean, or do not count.
        label_rows: rows of the last layer that count in the mean: all, or those of labels that the client has.
        radius: radius of the ball on which the weights are projected after each round; None for no projection.
        output_lr: step size of the output step, which then is the last round; None for no such step.
    """

    name = "submodel"
    code = 12

    aggregate: Literal["fill", "coverage"] = "fill"
    label_rows: Literal["all", "own"] = "all"
    radius: Positive | None = None
    output_lr: Positive | None = None

    def build(self, run: RunOptions) -> Method:
        """Return training of a part of the model; by channel all parameters are weights, as channels have biases."""
        self._check_output_step()
        self._check_label_rows()
        part = PartOfModel(self, run.seed, None if self.output_lr is None else run.rounds)
        return Method(
            name=self.name,
            code=self.code,
            codec=HeldFloats(self.label_rows == "own"),
            training=HeldTraining(part, self.output_lr, self.label_rows == "own"),
            server=BoundedWeights(self.aggregate == "coverage", self.radius),
            selection=part,
            whole_model=self.granularity == "channel",
            packing=run.downlink,
        )

    def _check_output_step(self) -> None:
        if self.output_lr is not None and self.granularity == "channel":
            reason = "the output step is one of single weights; set strategy.granularity=weight"
            raise conflict("strategy.output_lr", self.output_lr, reason)
        if self.output_lr is not None and self.masking == "rolling" and self.windows.startswith("fedrolex"):
            reason = "averages over all windows, of which there are as many as weights; set strategy.windows=shuffled"
            raise conflict("strategy.output_lr", self.output_lr, reason)

    def _check_label_rows(self) -> None:
        if self.label_rows == "own" and self.aggregate == "fill":
            reason = "leaves rows out of a mean over holders; set strategy.aggregate=coverage"
            raise conflict("strategy.label_rows", self.label_rows, reason)
        if self.label_rows == "own" and self.granularity == "weight":
            reason = "needs biases that are weights, as they are by channel; set strategy.granularity=channel"
            raise conflict("strategy.label_rows", self.label_rows, reason)


@dataclass(frozen=True)
class HeldTraining(LocalTraining):
    """Plain SGD on the held weights (Algorithm 1); other weights in the model are zero and stay zero."""

    part: PartOfModel
    output_lr: float | None = None
    own_labels: bool = False

    def train(self, model: FlatModel, local: TrainContext) -> LocalResult:
        """Train; `x` is the update, zero where the client does not hold a weight.

        With `own_labels`, `x` is NaN in the rows of the last layer that belong to other labels.
        """
        trained = self._train(model, local)
        if self.own_labels:
            labels = classifier_labels(model.layout)
            trained.x[-labels.size :][~np.isin(labels, local.batches.labels())] = np.nan
        return trained

    def _train(self, model: FlatModel, local: TrainContext) -> LocalResult:
        if local.server_round == self.part.output_round:
            return self.output_step(model, local)
        if self.part.rearranges:
            return self.train_rearranged(model, local)
        held = local.context.submodel_mask
        if held is None:
            return super().train(model, local)
        mask = _mask(held, model)
        initial = model.weights.clone()

        def update_held(step: int) -> None:
            model.weights.add_(model.weight_grads.mul_(mask), alpha=-local.lr)

        loss = local.sgd(model, update=update_held)
        return LocalResult((model.weights - initial).cpu().numpy(), loss)

    def train_rearranged(self, model: FlatModel, local: TrainContext) -> LocalResult:
        """Train the same weights with each layer's channels in an order of its own."""
        places = torch.from_numpy(self.part.arrangement(model.layout, local.seed)).to(model.device)
        model.weights.copy_(model.weights[places])
        initial = model.weights.clone()
        loss = local.sgd(model)
        update = torch.empty_like(initial)
        update[places] = model.weights - initial
        return LocalResult(update.cpu().numpy(), loss)

    def output_step(self, model: FlatModel, local: TrainContext) -> LocalResult:
        """Step along the mean of the masked gradients over all samples of the client; the dense part stays."""
        assert self.output_lr is not None
        weights, dense = model.weights.clone(), model.dense.clone()
        total, losses = torch.zeros_like(weights), []
        for held in self.part.output_masks(model.layout, local.client, local.server_round, local.seed):
            mask = _mask(held, model)
            torch.mul(weights, mask, out=model.weights)
            gradient, loss = full_gradient(model, local.batches, local.precision, local.weight_decay)
            total.add_(gradient.mul_(mask))
            losses.append(loss)
        model.dense.copy_(dense)
        return LocalResult(total.mul_(-self.output_lr / len(losses)).cpu().numpy(), sum(losses) / len(losses))


def _mask(held: NDArray[np.bool_], model: FlatModel) -> torch.Tensor:
    """Return held weights as float32 (d,) on the model's device."""
    return to_tensor(held.astype(np.float32)).to(model.device)


@dataclass(frozen=True)
class HeldFloats(Codec):
    """Body: the update of the held weights as float32, in the order of the weights.

    With `tells_labels`, a bit for each label precedes it, 1 if the client has the label. The rows of the last layer
    that belong to other labels are left out.
    """

    tells_labels: bool = False

    def encode(self, x: Float32Array, context: SharedContext, seed: int, private_seed: int) -> Body:
        """Return the update of the held weights; with `tells_labels`, NaN in `x` marks rows of other labels."""
        held = context.submodel_mask
        if not self.tells_labels:
            return Body(pack_floats(x if held is None else x[held]))
        labels = classifier_labels(context.layout)
        own = np.zeros(_classes(labels), np.bool_)
        own[labels[~np.isnan(x[-labels.size :])]] = True
        return Body(pack_bits(own) + pack_floats(x[_of_labels(context, own)]))

    def decode(self, body: Body, context: SharedContext, seed: int) -> Float32Array:
        """Return the update, zero where the client does not hold a weight."""
        return self._read(body, context).vector

    def read(self, body: Body, context: SharedContext, seed: int) -> Contribution:
        """Return the update, and with `tells_labels` which weights it has values of."""
        return self._read(body, context)

    def _read(self, body: Body, context: SharedContext) -> VectorContribution:
        body.must_be_plain()
        held, data = context.held_weights(), body.data
        if self.tells_labels:
            classes = _classes(classifier_labels(context.layout))
            bits, data = data[: packed_size(classes)], data[packed_size(classes) :]
            held = _of_labels(context, unpack_bits(bits, classes).view(np.bool_))
        update = np.zeros(context.count, np.float32)
        update[held] = unpack_floats(data, int(np.count_nonzero(held)))
        return VectorContribution(update, held if self.tells_labels else None)

    def limits(self, layout: Layout) -> CodecLimits:
        """Allow 32 bits per weight, as a client may hold all weights, and bits of at most as many labels as outputs."""
        outputs = max((shape[0] for shape in layout.shapes if shape), default=0) if self.tells_labels else 0
        return CodecLimits(max_bytes=4 * layout.count + packed_size(outputs))


def _classes(labels: NDArray[np.int64]) -> int:
    return int(labels[-1]) + 1


def _of_labels(context: SharedContext, own: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the held weights, bool (d,), without rows of the last layer of labels that `own`, bool (n,), lacks."""
    held, labels = context.held_weights().copy(), classifier_labels(context.layout)
    held[-labels.size :] &= own[labels]
    return held


@dataclass(frozen=True)
class BoundedWeights(ServerState):
    """The weights, projected on a ball of a radius if there is one (the paper's P_W)."""

    averages_holders: bool = False
    radius: float | None = None

    def combine(self, vector: Float32Array, mean: Float32Array, replies: int) -> Float32Array:
        """Add the mean update, and project the sum on the ball."""
        moved = vector + mean
        if self.radius is None:
            return moved
        norm = np.linalg.norm(moved.astype(np.float64))
        return moved * np.float32(self.radius / norm) if norm > self.radius else moved
