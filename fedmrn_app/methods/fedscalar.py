"""FedScalar: a client uploads one number, how far its update goes along a random vector (FedScalar, Algorithm 1).

Each round the server draws a seed, the same for all clients, and thereby a vector v of d independent elements with zero
mean and unit variance. A client trains as FedAvg does and sends r = <update, v>; r v is an unbiased estimate of the
update (Lemma 3.1). All trained parameters are projected, biases and batch norm too, so that nothing else is sent but
running statistics, where there are any.

Line 9 of Algorithm 1 divides the sum by N, the number of all clients, and who was not drawn counts as zero
(`divisor: clients`); so the step shrinks with the share of clients that take part. By default it is the mean over those
that do (`participants`), as in the other methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedmrn_app.errors import ConfigError
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.method import Codec, Method, MethodConfig, RunOptions, ServerState
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import Distribution, generate_noise
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.primitives import pack_floats, unpack_floats

Direction = Literal["rademacher", "normal"]
Divisor = Literal["participants", "clients"]
_DISTRIBUTIONS: dict[Direction, Distribution] = {"rademacher": "bernoulli", "normal": "gaussian"}


@dataclass(frozen=True)
class Projection(Codec):
    """Body: one float32."""

    direction: Direction

    def vector(self, seed: int, count: int) -> Float32Array:
        """The random vector v of a round, float32 (count,)."""
        return generate_noise(seed, count, _DISTRIBUTIONS[self.direction], 1.0)

    def encode(self, x: Float32Array, known: SharedContext, seed: int, private_seed: int) -> Body:
        """Project the update on v."""
        r = np.dot(x.astype(np.float64), self.vector(seed, x.size).astype(np.float64))
        return Body(pack_floats(np.array([r], np.float32)))

    def decode(self, body: Body, known: SharedContext, seed: int) -> Float32Array:
        """Return r v."""
        body.must_be_plain()
        update = self.vector(seed, known.count)
        update *= unpack_floats(body.data, 1)[0]
        return update

    def max_bytes(self, layout: Layout) -> int:
        """Four bytes, whatever the model."""
        return 4


@dataclass(frozen=True)
class OverAllClients(ServerState):
    """The weights; the mean of a round counts by the share of the clients that took part."""

    counts_participants: ClassVar[bool] = True  # type: ignore[misc]

    clients: int

    def combine(self, vector: Float32Array, mean: Float32Array, replies: int) -> Float32Array:
        """Add the sum over the replies, divided by the number of all clients."""
        mean *= np.float32(replies / self.clients)
        mean += vector
        return mean


@dataclass(frozen=True)
class FedScalar(MethodConfig):
    """Options.

    Attributes:
        direction: the elements of v; Rademacher has the smaller variance (Proposition 3.1).
        divisor: of the sum of all updates.
    """

    name = "fedscalar"
    code = 11

    direction: Direction = "rademacher"
    divisor: Divisor = "participants"

    def build(self, run: RunOptions) -> Method:
        """Plain SGD, then one number; a seed per round, so that all numbers add up along one vector."""
        server = ServerState()
        if self.divisor == "clients":
            if not run.clients:
                raise ConfigError("strategy.divisor=clients: it is not known how many there are; say participants")
            server = OverAllClients(run.clients)
        codec = Projection(self.direction)
        return Method(
            self.name, self.code, codec, server=server, whole_model=True, shared_seed=True, packing=run.downlink
        )
