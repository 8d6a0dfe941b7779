"""FedPM: clients learn which of a frozen random network's weights to keep (Isik et al. 2023, Algorithms 1 and 2).

The global vector holds, for every masked weight, the probability that it is kept. A client turns it into scores
s = logit(p), trains them with masks m ~ Bern(sigmoid(s)) drawn anew in each forward pass and a gradient straight
through m, and uploads one last mask. The server's estimate is the mode of the Beta posterior, whose prior
Beta(lambda, lambda) is reset each round; with lambda = 1 that is the clients' mean mask.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from fedmrn_app.errors import ConfigError
from fedmrn_app.learning.flat import FlatModel, to_tensor
from fedmrn_app.methods import ClientUpdate, Common, LocalTask, Method
from fedmrn_app.noise import Float32Array, generate_noise
from fedmrn_app.shapes import Shapes, sizes_of
from fedmrn_app.wire.bits import packed_size
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.masks import Evidence, pack_mask, unpack_mask
from fedmrn_app.wire.palette import pack_palette, unpack_palette

Evaluation = Literal["expected", "threshold"]


@dataclass(frozen=True)
class FedPM(Method):
    """Body: a mask, 1 where the weight is kept."""

    name = "fedpm"
    code = 10

    score_lr: float = 1000.0  # step size of the scores; that of the dense part is local.lr
    prior: float = 1.0  # lambda of the Beta prior
    min_probability: float = 0.01  # scores start within logit of this and of one minus it, lest they be infinite
    evaluation: Evaluation = "expected"  # weights times probabilities, or those with a probability of one half and more

    def __post_init__(self) -> None:
        if not self.score_lr > 0:
            raise ConfigError(f"strategy.score_lr={self.score_lr}: must be above 0")
        if not self.prior >= 1:
            raise ConfigError(f"strategy.prior={self.prior}: must be at least 1")
        if not 0 < self.min_probability < 0.5:
            raise ConfigError(f"strategy.min_probability={self.min_probability}: must be between 0 and 0.5")
        if self.downlink != "float32":
            raise ConfigError(f"downlink.dtype={self.downlink}: fedpm sends its probabilities exactly; take float32")
        allowed = get_args(Evaluation)
        if self.evaluation not in allowed:
            raise ConfigError(f"strategy.evaluation={self.evaluation}: must be one of {', '.join(allowed)}")

    def frozen_weights(self, shapes: Shapes) -> Float32Array:
        """The random network: +-sqrt(2 / fan_in), a fair sign each, from the run's seed."""
        frozen = generate_noise(self.seed, sum(sizes_of(shapes)), "bernoulli", 1.0)
        scales = [math.sqrt(2 / math.prod(shape[1:])) for shape in shapes]
        return frozen * np.repeat(np.array(scales, np.float32), sizes_of(shapes))

    def train(self, model: FlatModel, task: LocalTask) -> ClientUpdate:
        """Train the scores, then draw the mask that is sent."""
        start = time.perf_counter()
        generator = task.generator(model.device)
        frozen = to_tensor(self.frozen_weights(model.shapes)).to(model.device)
        scores = torch.logit(model.weights, eps=self.min_probability)

        def draw() -> torch.Tensor:
            random = torch.rand(scores.shape, generator=generator, device=scores.device)
            return random < torch.sigmoid(scores)

        def mask_weights(step: int) -> None:
            torch.mul(frozen, draw(), out=model.weights)

        def update_scores(step: int) -> None:
            p = torch.sigmoid(scores)
            scores.add_(model.weight_grads.mul_(frozen).mul_(p * (1 - p)), alpha=-self.score_lr)

        loss = task.sgd(model, before_step=mask_weights, update=update_scores)
        trained = time.perf_counter()
        body = pack_mask(draw().cpu().numpy(), partial(_evidence, task.common), self.coder)
        return ClientUpdate(body, loss, trained - start, time.perf_counter() - trained)

    def decode(self, body: Body, seed: int, common: Common) -> Float32Array:
        """Return the client's mask as zeros and ones."""
        return unpack_mask(body, common.count, partial(_evidence, common)).astype(np.float32)

    def max_body_bytes(self, shapes: Shapes) -> int:
        """One bit a weight."""
        return packed_size(sum(sizes_of(shapes)))

    def first_vector(self, model: FlatModel) -> Float32Array:
        """Every weight is kept with probability one half."""
        return np.full(model.weights.numel(), 0.5, np.float32)

    def combine(self, vector: Float32Array, mean: Float32Array, replies: int) -> Float32Array:
        """Mode of the Beta posterior of as many draws as there are replies, from the reset prior."""
        return (mean * np.float32(replies) + np.float32(self.prior - 1)) / np.float32(replies + 2 * (self.prior - 1))

    def pack(self, vector: Float32Array, sizes: Sequence[int]) -> NDArray[Any]:
        """The few different values that means of masks take, and for each weight which of them."""
        return np.frombuffer(pack_palette(vector), np.uint8)

    def unpack(self, packed: NDArray[Any], sizes: Sequence[int]) -> Float32Array:
        """The inverse of `pack`, exactly."""
        return unpack_palette(packed.tobytes(), sum(sizes))

    def weights(self, vector: Float32Array, shapes: Shapes) -> Float32Array:
        """The expected network, or the one of the weights that are kept more often than not."""
        kept = vector if self.evaluation == "expected" else (vector >= 0.5).astype(np.float32)
        return self.frozen_weights(shapes) * kept

    def sampled_weights(self, vector: Float32Array, shapes: Shapes, seed: int) -> Float32Array | None:
        """A network with a mask drawn from the probabilities."""
        kept = np.random.default_rng(seed).random(vector.size, np.float32) < vector
        return self.frozen_weights(shapes) * kept


def _evidence(common: Common) -> Evidence:
    """The server's probabilities."""
    return Evidence(common.shapes, common.vector)
