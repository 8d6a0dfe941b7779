"""FedAvg: the client uploads its update of all weights in float32 (McMahan et al. 2017; Li et al. 2024, Eq. 3)."""

from __future__ import annotations

from dataclasses import dataclass

from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.method import Codec, Method, MethodConfig, RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.primitives import pack_floats, unpack_floats


class Floats(Codec):
    """Body: the update as little-endian float32, in the weights' order."""

    def encode(self, x: Float32Array, known: SharedContext, seed: int, private_seed: int) -> Body:
        """Nothing is compressed."""
        return Body(pack_floats(x))

    def decode(self, body: Body, known: SharedContext, seed: int) -> Float32Array:
        """Read the update; values that are not finite are refused."""
        body.must_be_plain()
        return unpack_floats(body.data, known.count)

    def max_bytes(self, layout: Layout) -> int:
        """32 bits per weight."""
        return 4 * layout.count


@dataclass(frozen=True)
class FedAvg(MethodConfig):
    """There is nothing to choose."""

    name = "fedavg"
    code = 1

    def build(self, run: RunOptions) -> Method:
        """Plain SGD and plain numbers."""
        return Method(self.name, self.code, Floats(), packing=run.downlink)
