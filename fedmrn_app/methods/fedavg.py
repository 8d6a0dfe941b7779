"""FedAvg: a client trains with SGD and uploads its update in float32, and the server adds the mean update.

McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data", Algorithm 1;
Li et al. 2024, Equation 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.method import Codec, CodecLimits, Method, MethodConfig, RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.primitives import floats_as_bytes, unpack_floats


@dataclass(frozen=True)
class FedAvg(MethodConfig):
    """FedAvg has no options."""

    name = "fedavg"
    code = 1

    def build(self, run: RunOptions) -> Method:
        """Return plain SGD with uncompressed updates."""
        return self.compressor(run, Floats())


class Floats(Codec):
    """Body: the update as little-endian float32, in the order of the weights."""

    def encode(self, x: Float32Array, context: SharedContext, seed: int, private_seed: int) -> Body:
        """Return the update."""
        return Body(floats_as_bytes(x))

    def decode(self, body: Body, context: SharedContext, seed: int) -> Float32Array:
        """Return the update; values that are not finite are refused."""
        body.must_be_plain()
        return unpack_floats(body.data, context.count)

    def limits(self, layout: Layout) -> CodecLimits:
        """Allow 32 bits per weight."""
        return CodecLimits(max_bytes=4 * layout.count)
