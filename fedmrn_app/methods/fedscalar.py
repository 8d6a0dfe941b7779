"""FedScalar: a client uploads one number, the projection of its update on a random vector.

"FedScalar: A Communication Efficient Federated Learning", Algorithm 1. In each round the server draws one seed for all
clients, and with it a vector v of d independent elements with zero mean and unit variance. A client trains as in
FedAvg and sends r = <update, v>; r v is an unbiased estimate of the update (Lemma 3.1). All trained parameters are
projected, biases and batch norm too, so that nothing else is sent but running statistics, if there are any.

Line 9 of Algorithm 1 divides the sum by N, the number of all clients, so that clients that were not drawn count as zero
(`divisor: clients`), and the step shrinks with the fraction of clients that take part. By default the sum is divided by
the number of those that do (`participants`), as in the other methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.method import Codec, CodecLimits, Method, MethodConfig, RunOptions, ServerState, conflict
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import Distribution, generate_noise
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.primitives import pack_floats, unpack_floats

Direction = Literal["rademacher", "normal"]
Divisor = Literal["participants", "clients"]
_DISTRIBUTIONS: dict[Direction, Distribution] = {"rademacher": "bernoulli", "normal": "gaussian"}


@dataclass(frozen=True)
class FedScalar(MethodConfig):
    """FedScalar.

    Attributes:
        direction: distribution of the elements of v; Rademacher has the smaller variance (Proposition 3.1).
        divisor: divisor of the sum of all updates.
    """

    name = "fedscalar"
    code = 11

    direction: Direction = "rademacher"
    divisor: Divisor = "participants"

    def build(self, run: RunOptions) -> Method:
        """Return plain SGD with a codec of projections on one vector per round."""
        if self.divisor == "clients" and not run.clients:
            reason = "the number of clients is unknown; set strategy.divisor=participants"
            raise conflict("strategy.divisor", self.divisor, reason)
        return Method(
            name=self.name,
            code=self.code,
            codec=Projection(self.direction),
            server=OverAllClients(run.clients) if self.divisor == "clients" else ServerState(),
            whole_model=True,
            shared_seed=True,
            packing=run.downlink,
        )


@dataclass(frozen=True)
class Projection(Codec):
    """Body: one float32."""

    direction: Direction

    def vector(self, seed: int, count: int) -> Float32Array:
        """Return the random vector v of a round, float32 (count,)."""
        return generate_noise(seed, count, _DISTRIBUTIONS[self.direction], 1.0)

    def encode(self, x: Float32Array, context: SharedContext, seed: int, private_seed: int) -> Body:
        """Project the update on v."""
        r = np.dot(x.astype(np.float64), self.vector(seed, x.size).astype(np.float64))
        return Body(pack_floats(np.array([r], np.float32)))

    def decode(self, body: Body, context: SharedContext, seed: int) -> Float32Array:
        """Return r v."""
        body.must_be_plain()
        update = self.vector(seed, context.count)
        update *= unpack_floats(body.data, 1)[0]
        return update

    def limits(self, layout: Layout) -> CodecLimits:
        """Allow four bytes for any model."""
        return CodecLimits(max_bytes=4)


@dataclass(frozen=True)
class OverAllClients(ServerState):
    """The weights; the mean of a round is multiplied by the fraction of the clients that took part."""

    counts_participants: ClassVar[bool] = True

    clients: int

    def combine(self, vector: Float32Array, mean: Float32Array, replies: int) -> Float32Array:
        """Add the sum over the replies, divided by the number of all clients."""
        mean *= np.float32(replies / self.clients)
        mean += vector
        return mean
