"""FedPM: clients learn which of a frozen random network's weights to keep (Isik et al. 2023, Algorithms 1 and 2).

The global vector holds, for every masked weight, the probability that it is kept. A client turns it into scores
s = logit(p), trains them with masks m ~ Bern(sigmoid(s)) drawn anew in each forward pass and a gradient straight
through m, and uploads one last mask, whose uniforms follow from the server's seed: it has the distribution that it
would have with any others, and is coded by how far the server's probabilities are from them. So that last draw is no
private randomness; those in training are. The server's estimate is the mode of the Beta posterior, whose prior
Beta(lambda, lambda) is reset each round; with lambda = 1 that is the clients' mean mask.

By default scores are trained by SGD over frozen weights of He's size. Their published code has Adam with the step size
0.01, anew in each round, and frozen weights of +-e / sqrt(fan_in); its networks have no batch norm, and biases are
frozen and masked too, where here all that is not a matrix or kernel is trained densely beside the masks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedmrn_app.errors import ConfigError
from fedmrn_app.kernels.counter_rng import known_key, step_key
from fedmrn_app.kernels.scoring import Scores, score_step
from fedmrn_app.kernels.thresholds import uniforms
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.learning.flat import FlatModel, to_tensor
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
from fedmrn_app.methods.randomized_response import RandomizedResponse
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import generate_noise
from fedmrn_app.validation import Positive, Range
from fedmrn_app.wire.body import Body, Coder
from fedmrn_app.wire.mask_model import SideInformation
from fedmrn_app.wire.masks import pack_mask, unpack_mask
from fedmrn_app.wire.primitives import packed_size

Optimizer = Literal["sgd", "adam"]


@dataclass(frozen=True)
class FrozenNetwork:
    """The random network: +-sqrt(gain / fan_in), a fair sign each, from a seed."""

    seed: int
    gain: float = 2.0

    def weights(self, layout: Layout) -> Float32Array:
        """All its weights, float32 (d,)."""
        frozen = generate_noise(self.seed, layout.count, "bernoulli", 1.0)
        for tensor, shape in zip(layout.split(frozen), layout.shapes, strict=True):
            tensor *= np.float32(math.sqrt(self.gain / math.prod(shape[1:])))
        return frozen


@dataclass(frozen=True)
class ScoreTraining(LocalTraining):
    """Training of scores over the frozen network; `x` is the probability that each weight is kept."""

    network: FrozenNetwork
    score_lr: float
    min_probability: float
    optimizer: Optimizer = "sgd"

    def train(self, model: FlatModel, local: TrainContext) -> Trained:
        """Train the scores."""
        frozen = to_tensor(self.network.weights(model.layout)).to(model.device)
        scores = model.weights.clamp(self.min_probability, 1 - self.min_probability).logit_()
        probabilities = torch.zeros_like(scores)
        step_on = score_step(Scores(scores, probabilities, frozen, model.weights))

        def mask_weights(step: int, grads: Iterable[tuple[int, Tensor]], lr: float) -> None:
            """Subtract the gradients from the scores and draw the mask for the forward pass of `step`."""
            key = step_key(local.private_seed, step)
            for start, grad in grads:
                step_on(start, grad, lr, key)

        mask_weights(1, [(0, frozen)], 0.0)  # the first mask is that of the scores as they are, whatever the gradient
        if self.optimizer == "sgd":
            loss = local.sgd(model, update=lambda step: mask_weights(step + 1, model.grad_parts(), self.score_lr))
            return Trained(probabilities.cpu().numpy(), loss)
        adam = torch.optim.Adam([scores], self.score_lr)

        def step_by_adam(step: int) -> None:
            """Take a step on the scores, then draw the mask of the next one as `mask_weights` does."""
            scores.grad = model.weight_grads * frozen * (probabilities * (1 - probabilities))
            adam.step()
            mask_weights(step + 1, [(0, frozen)], 0.0)

        loss = local.sgd(model, update=step_by_adam)
        return Trained(probabilities.cpu().numpy(), loss)


@dataclass(frozen=True)
class KeptWeights(Codec):
    """Body: a mask, 1 where the weight is kept."""

    coder: Coder
    flips: RandomizedResponse | None = None

    def encode(self, x: Float32Array, known: SharedContext, seed: int, private_seed: int) -> Body:
        """Draw the last mask from the probabilities `x`, and pack it."""
        mask = uniforms(known_key(seed), x.size) < x
        if self.flips is not None:
            mask = self.flips.apply(mask, private_seed)
        return pack_mask(mask, partial(_side, known, seed), self.coder)

    def decode(self, body: Body, known: SharedContext, seed: int) -> Float32Array:
        """Return the client's mask as zeros and ones, or what has its expectation where bits are flipped."""
        mask = unpack_mask(body, known.count, partial(_side, known, seed)).astype(np.float32)
        if self.flips is not None:
            mask -= np.float32(self.flips.probability)
            mask *= np.float32(self.flips.gain)
        return mask

    @property
    def bounded(self) -> bool:
        """Bits are 0 or 1."""
        return True

    def max_bytes(self, layout: Layout) -> int:
        """One bit per weight."""
        return packed_size(layout.count)


@dataclass(frozen=True)
class Probabilities(ServerState):
    """The vector holds probabilities; `threshold` evaluates the likelier weights alone, else the expected network."""

    averages_updates: ClassVar[bool] = False  # type: ignore[misc]

    network: FrozenNetwork
    prior: float
    threshold: bool

    def first(self, weights: Float32Array, layout: Layout) -> Float32Array:
        """Every weight is kept with probability one half."""
        return np.full(layout.count, 0.5, np.float32)

    def combine(self, vector: Float32Array, mean: Float32Array, replies: int) -> Float32Array:
        """Mode of the Beta posterior of as many draws as there are replies, from the reset prior."""
        total = mean * np.float32(replies) + np.float32(self.prior - 1)
        total /= np.float32(replies + 2 * (self.prior - 1))
        return np.clip(total, 0, 1, out=total)  # means of flipped bits may be beyond

    def weights(self, vector: Float32Array, layout: Layout) -> Float32Array:
        """The expected network, or the one of the weights that are kept more often than not."""
        kept = (vector >= 0.5).astype(np.float32) if self.threshold else vector
        return self.network.weights(layout) * kept

    def sampled(self, vector: Float32Array, layout: Layout, seed: int) -> Float32Array | None:
        """A network with a mask drawn from the probabilities."""
        kept = np.random.default_rng(seed).random(vector.size, np.float32) < vector
        return self.network.weights(layout) * kept


@dataclass(frozen=True)
class FedPM(MethodConfig):
    """Options.

    Attributes:
        optimizer: of the scores: SGD, or Adam as in their code.
        score_lr: its step size; that of the dense part is local.lr.
        network: size of the frozen weights, times sqrt(fan_in): He's sqrt(2), or e as in their code.
        prior: lambda of the Beta prior.
        min_probability: scores start within logit of this and of one minus it, lest they be infinite.
        evaluation: weights times probabilities, or those with a probability of one half and more.
    """

    name = "fedpm"
    code = 10

    optimizer: Optimizer = "sgd"
    score_lr: Positive = 1000.0
    network: Literal["he", "e"] = "he"
    prior: Annotated[float, Range(least=1)] = 1.0
    min_probability: Annotated[float, Range(above=0, below=0.5)] = 0.01
    evaluation: Literal["expected", "threshold"] = "expected"

    def build(self, run: RunOptions) -> Method:
        """Training of scores, masks, probabilities, which are sent exactly."""
        if run.downlink != "float32":
            raise ConfigError(f"downlink.dtype={run.downlink}: fedpm sends its probabilities exactly; take float32")
        if self.optimizer == "adam" and self.score_lr > 1:
            raise ConfigError(
                f"strategy.score_lr={self.score_lr:g}: is a step size of SGD; with strategy.optimizer=adam say 0.01"
            )
        network = FrozenNetwork(run.seed, 2.0 if self.network == "he" else math.e**2)
        return Method(
            self.name,
            self.code,
            KeptWeights(run.coder, run.flips),
            ScoreTraining(network, self.score_lr, self.min_probability, self.optimizer),
            Probabilities(network, self.prior, self.evaluation == "threshold"),
            whole_model=run.flips is not None,  # nothing goes beside the mask
            packing="palette",  # means of masks take few different values
            flips=run.flips,
        )


def _side(known: SharedContext, seed: int) -> SideInformation:
    """How far the uniforms are from the server's probabilities; a bit is set where they are on the other side now."""
    size = uniforms(known_key(seed), known.count)
    size -= known.vector
    flipped = size < 0
    sign = np.copysign(np.float32(1), size)
    np.abs(size, out=size)
    np.minimum(size, 1, out=size)
    return SideInformation(known.layout, size, sign, flipped=flipped)
