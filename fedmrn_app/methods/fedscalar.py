"""FedScalar: a client uploads one number, how far its update goes along a random vector (FedScalar, Algorithm 1).

Each round the server draws a seed, the same for all clients, and thereby a vector v of d independent elements with zero
mean and unit variance. A client trains as FedAvg does and sends r = <update, v>; r v is an unbiased estimate of the
update (Lemma 3.1). All trained parameters are projected, biases and batch norm too, so that nothing else is sent but
running statistics, where there are any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedmrn_app.errors import ConfigError
from fedmrn_app.methods import Common, PostTraining
from fedmrn_app.noise import Distribution, Float32Array, derive_seed, generate_noise
from fedmrn_app.shapes import Shapes
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.values import pack_floats, unpack_floats

Direction = Literal["rademacher", "normal"]
_DISTRIBUTIONS: dict[Direction, Distribution] = {"rademacher": "bernoulli", "normal": "gaussian"}


@dataclass(frozen=True)
class FedScalar(PostTraining):
    """Body: one float32."""

    name = "fedscalar"
    code = 11

    direction: Direction = "rademacher"  # the smaller variance (Proposition 3.1); the paper's other choice is normal

    def __post_init__(self) -> None:
        if self.direction not in _DISTRIBUTIONS:
            allowed = ", ".join(get_args(Direction))
            raise ConfigError(f"strategy.direction={self.direction}: must be one of {allowed}")

    @property
    def whole_model(self) -> bool:
        """One random vector for everything that is trained."""
        return True

    def client_seed(self, run_seed: int, server_round: int, client: int) -> int:
        """One seed for all clients of a round: their numbers add up along one vector."""
        return derive_seed(run_seed, "noise", server_round)

    def vector(self, seed: int, count: int) -> Float32Array:
        """The random vector v of a round, float32 (count,)."""
        return generate_noise(seed, count, _DISTRIBUTIONS[self.direction], 1.0)

    def compress(self, x: Float32Array, seed: int, common: Common, random: np.random.Generator) -> Body:
        """Project the update on v."""
        r = np.dot(x.astype(np.float64), self.vector(seed, x.size).astype(np.float64))
        return Body(pack_floats(np.array([r], np.float32)))

    def decode(self, body: Body, seed: int, common: Common) -> Float32Array:
        """Return r v."""
        body.must_be_plain()
        update = self.vector(seed, common.count)
        update *= unpack_floats(body.data, 1)[0]
        return update

    def max_body_bytes(self, shapes: Shapes) -> int:
        """Four bytes, whatever the model."""
        return 4
