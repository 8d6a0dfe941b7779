"""FedPM: clients learn which weights of a frozen random network to keep.

Isik et al. 2023, "Sparse Random Networks for Communication-Efficient Federated Learning", Algorithms 1 and 2.

The global vector holds the probability p that each masked weight is kept. A client turns it into scores s = logit(p)
and trains them: each forward pass draws a mask m ~ Bern(sigmoid(s)), and the gradient passes straight through m. The
client uploads one last mask. The server's estimate is the mode of the Beta posterior, whose prior Beta(lambda, lambda)
is reset in each round; with lambda = 1 that is the clients' mean mask.

The uniforms of the last mask follow from the server's seed, so that the mask is coded by how far they are from the
server's probabilities. Neither that draw nor those during training are private randomness: all follow from the run's
seed.

By default scores are trained by SGD over frozen weights of He's size. The published code is another algorithm, which
`strategy=fedpm_code` has: frozen weights of +-e / sqrt(fan_in); first scores from N(0, 1); Adam with the step size 0.1
(the 0.01 of its configuration files is not read), whose moments a client keeps for the whole run, while the server
replaces the scores in each round; gradients of the scores that are multiplied by p once more; and masks of which 0
counts as 0.01 and 1 as 0.99 in the mean, in which all clients weigh the same. Two differences remain: its networks have
no batch norm, and it freezes and masks biases too, which here are part of the dense part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from fedmrn_app.kernels.counter_rng import known_key, step_key
from fedmrn_app.kernels.scoring import Scores, score_step, sigmoid
from fedmrn_app.kernels.thresholds import uniforms
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.learning.flat import FlatModel, to_tensor
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
from fedmrn_app.methods.randomized_response import RandomizedResponse
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import generate_noise
from fedmrn_app.seeds import mix
from fedmrn_app.validation import Positive, Range
from fedmrn_app.wire.body import Body, Coder
from fedmrn_app.wire.mask_model import SideInformation
from fedmrn_app.wire.masks import pack_mask, unpack_mask
from fedmrn_app.wire.primitives import packed_size

Optimizer = Literal["sgd", "adam"]


@dataclass(frozen=True, kw_only=True)
class FedPM(MethodConfig):
    """FedPM.

    Attributes:
        optimizer: optimizer of the scores: SGD, or Adam as in the published code.
        moments: whether Adam restarts in each round, or continues with the moments that the client kept of its last.
        gradient: gradient of the scores: with the mask taken for p, or that times p as in the published code.
        score_lr: step size of the scores; that of the dense part is local.lr.
        network: magnitude of the frozen weights times sqrt(fan_in): He's sqrt(2), or e as in the published code.
        first_scores: scores before the first round: zero, or drawn from N(0, 1) as in the published code.
        mask_margin: a mask's 0 counts as this in the mean, and its 1 as one minus this.
        prior: lambda of the Beta prior.
        min_probability: scores start between the logits of this and of one minus this, so that they are finite.
        evaluation: weights times probabilities, or the weights with a probability of at least 1/2.
    """

    name = "fedpm"
    code = 10

    optimizer: Optimizer = "sgd"
    moments: Literal["restarted", "kept"] = "restarted"
    gradient: Literal["exact", "times_p"] = "exact"
    score_lr: Positive = 1000.0
    network: Literal["he", "e"] = "he"
    first_scores: Literal["zero", "normal"] = "zero"
    mask_margin: Annotated[float, Range(least=0, below=0.5)] = 0.0
    prior: Annotated[float, Range(least=1)] = 1.0
    min_probability: Annotated[float, Range(above=0, below=0.5)] = 0.01
    evaluation: Literal["expected", "threshold"] = "expected"

    def build(self, run: RunOptions) -> Method:
        """Return training of scores, a codec of masks, and probabilities as global vector."""
        if run.downlink != "float32":
            raise conflict(
                "downlink.dtype", run.downlink, "fedpm sends its probabilities exactly; set downlink.dtype=float32"
            )
        if self.optimizer == "adam" and self.score_lr > 1:
            reason = "is a step size of SGD; with strategy.optimizer=adam set it to 0.01"
            raise conflict("strategy.score_lr", self.score_lr, reason)
        for key, default in (("moments", "restarted"), ("gradient", "exact")):
            value = getattr(self, key)
            if self.optimizer == "sgd" and value != default:
                reason = f"is for Adam; set strategy.optimizer=adam, or strategy.{key}={default}"
                raise conflict(f"strategy.{key}", value, reason)
        network = FrozenNetwork(run.seed, 2.0 if self.network == "he" else math.e**2)
        return Method(
            name=self.name,
            code=self.code,
            codec=KeptWeights("packed" if run.secure else run.coder, run.randomized_response),
            training=self._training(network),
            server=Probabilities(
                network, self.prior, self.evaluation == "threshold", self.first_scores == "normal", self.mask_margin
            ),
            whole_model=run.randomized_response is not None,  # a dense part beside the mask would not be private
            packing="palette",  # means of masks take few different values
            randomized_response=run.randomized_response,
            adds_masks=run.randomized_response is None,
        )

    def _training(self, network: FrozenNetwork) -> LocalTraining:
        if self.optimizer == "sgd":
            return ScoreTraining(network, self.score_lr, self.min_probability)
        kept, times_p = self.moments == "kept", self.gradient == "times_p"
        return AdamTraining(network, self.score_lr, self.min_probability, kept, times_p)


@dataclass(frozen=True)
class FrozenNetwork:
    """The random network: +-sqrt(gain / fan_in), each sign with probability 1/2, from a 64-bit seed."""

    seed: int
    gain: float = 2.0

    def weights(self, layout: Layout) -> Float32Array:
        """Return all weights, float32 (d,)."""
        frozen = generate_noise(self.seed, layout.count, "bernoulli", 1.0)
        for tensor, shape in zip(layout.split(frozen), layout.shapes, strict=True):
            tensor *= np.float32(math.sqrt(self.gain / math.prod(shape[1:])))
        return frozen


@dataclass(frozen=True)
class ScoreTraining(LocalTraining):
    """Training of scores by SGD over the frozen network; `x` is the probability that each weight is kept."""

    network: FrozenNetwork
    score_lr: float
    min_probability: float

    def train(self, model: FlatModel, local: TrainContext) -> LocalResult:
        """Train the scores, starting from the global probabilities."""
        vectors = self.start(model)
        step_on = score_step(vectors)

        def update(step: int) -> None:
            """Subtract the gradients from the scores, and draw the mask of the next step."""
            for start, grad in model.grad_parts():
                step_on(start, grad, self.score_lr, step_key(local.private_seed, step + 1))

        draw_score_mask(vectors, local, 1)
        loss = local.sgd(model, update=update)
        return LocalResult(vectors.probabilities.cpu().numpy(), loss)

    def start(self, model: FlatModel) -> Scores:
        """Return the vectors of the first step, for a model whose weights are the global probabilities."""
        frozen = to_tensor(self.network.weights(model.layout)).to(model.device)
        scores = model.weights.clamp(self.min_probability, 1 - self.min_probability).logit_()
        return Scores(scores, torch.zeros_like(scores), frozen, model.weights)


def draw_score_mask(vectors: Scores, local: TrainContext, step: int) -> None:
    """Compute the probabilities of the scores, and draw the mask for the forward pass of a step."""
    score_step(vectors)(0, vectors.frozen, 0.0, step_key(local.private_seed, step))  # lr=0: any gradient does


@dataclass(frozen=True)
class AdamTraining(ScoreTraining):
    """Training of scores by Adam; with `keeps_state` a client's moments continue from round to round.

    What it keeps is float32 (2d + 1,): first moments, second moments and the number of steps.
    """

    keeps_state: bool = False
    times_p: bool = False

    def train(self, model: FlatModel, local: TrainContext) -> LocalResult:
        """Train the scores, starting from the global probabilities."""
        vectors = self.start(model)
        scores, p = vectors.scores, vectors.probabilities
        adam = torch.optim.Adam([scores], self.score_lr)
        if self.keeps_state and local.kept is not None:
            first, second, steps = np.split(local.kept, [scores.numel(), 2 * scores.numel()])
            moments = {"exp_avg": to_tensor(first), "exp_avg_sq": to_tensor(second)}
            adam.state[scores] = {key: value.clone().to(model.device) for key, value in moments.items()}
            adam.state[scores]["step"] = torch.tensor(float(steps.item()))

        def update(step: int) -> None:
            """Step on the scores, then draw the mask of the next step."""
            scores.grad = model.weight_grads * vectors.frozen * (p * (1 - p))
            if self.times_p:
                scores.grad.mul_(p)
            adam.step()
            draw_score_mask(vectors, local, step + 1)

        draw_score_mask(vectors, local, 1)
        loss = local.sgd(model, update=update)
        if not self.keeps_state:
            return LocalResult(p.cpu().numpy(), loss)
        state = adam.state[scores]
        kept = [state["exp_avg"], state["exp_avg_sq"], state["step"].reshape(1)]
        return LocalResult(p.cpu().numpy(), loss, np.concatenate([value.cpu().numpy() for value in kept]))


@dataclass(frozen=True)
class KeptWeights(Codec):
    """Body: a mask, 1 where the weight is kept."""

    coder: Coder
    randomized_response: RandomizedResponse | None = None

    def encode(self, x: Float32Array, context: SharedContext, seed: int, private_seed: int) -> Body:
        """Draw the last mask from the probabilities `x` with uniforms that the server knows, and pack it."""
        mask = uniforms(known_key(seed), x.size) < x
        if self.randomized_response is not None:
            mask = self.randomized_response.apply(mask, private_seed)
        return pack_mask(mask, partial(_side_info, context, seed), self.coder)

    def decode(self, body: Body, context: SharedContext, seed: int) -> Float32Array:
        """Return the mask as zeros and ones; with randomized response, values with that expectation."""
        mask = unpack_mask(body, context.count, partial(_side_info, context, seed)).astype(np.float32)
        if self.randomized_response is not None:
            mask -= np.float32(self.randomized_response.probability)
            mask *= np.float32(self.randomized_response.gain)
        return mask

    def limits(self, layout: Layout) -> CodecLimits:
        """Allow one bit per weight, and the norm of a mask that keeps all weights."""
        norm = math.sqrt(layout.count)
        if self.randomized_response is not None:
            norm *= self.randomized_response.gain * (1 - self.randomized_response.probability)
        return CodecLimits(max_bytes=packed_size(layout.count), max_norm=norm)


def _side_info(context: SharedContext, seed: int) -> SideInformation:
    """Return how far the uniforms are from the server's probabilities; an inverted bit is set if it changes sides."""
    size = uniforms(known_key(seed), context.count)
    size -= context.vector
    inverted = size < 0
    sign = np.copysign(np.float32(1), size)
    np.abs(size, out=size)
    np.minimum(size, 1, out=size)
    return SideInformation(context.layout, size, sign, inverted=inverted)


@dataclass(frozen=True)
class Probabilities(ServerState):
    """The vector holds probabilities; evaluated is the expected network, or with `threshold` its likelier weights."""

    averages_updates: ClassVar[bool] = False

    network: FrozenNetwork
    prior: float
    threshold: bool
    normal: bool = False
    margin: float = 0.0

    def first(self, weights: Float32Array, layout: Layout) -> Float32Array:
        """Return the probability 1/2 for every weight; with `normal`, the sigmoid of scores from N(0, 1)."""
        if self.normal:
            scores = generate_noise(mix(self.network.seed), layout.count, "gaussian", 1.0)
            return sigmoid(torch.from_numpy(scores)).numpy()
        return np.full(layout.count, 0.5, np.float32)

    def combine(self, vector: Float32Array, mean: Float32Array, replies: int) -> Float32Array:
        """Return the mode of the Beta posterior after one draw per reply, from the reset prior."""
        if self.margin:
            mean = mean * np.float32(1 - 2 * self.margin) + np.float32(self.margin)
        total = mean * np.float32(replies) + np.float32(self.prior - 1)
        total /= np.float32(replies + 2 * (self.prior - 1))
        return np.clip(total, 0, 1, out=total)  # with randomized response means can lie outside

    def weights(self, vector: Float32Array, layout: Layout) -> Float32Array:
        """Return the expected network, or the weights whose probability is at least 1/2."""
        kept = (vector >= 0.5).astype(np.float32) if self.threshold else vector
        return self.network.weights(layout) * kept

    def sampled(self, vector: Float32Array, layout: Layout, seed: int) -> Float32Array | None:
        """Return a network whose mask is drawn from the probabilities."""
        kept = np.random.default_rng(seed).random(vector.size, np.float32) < vector
        return self.network.weights(layout) * kept
