"""FedAvg: the client uploads its update of all weights in float32 (McMahan et al. 2017; Li et al. 2024, Eq. 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmrn_app.methods import Common, PostTraining
from fedmrn_app.noise import Float32Array
from fedmrn_app.shapes import Shapes, sizes_of
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.values import pack_floats, unpack_floats


@dataclass(frozen=True)
class FedAvg(PostTraining):
    """Body: the update as little-endian float32, in the weights' order."""

    name = "fedavg"
    code = 1

    def compress(self, x: Float32Array, seed: int, common: Common, random: np.random.Generator) -> Body:
        """Nothing is compressed."""
        return Body(pack_floats(x))

    def decode(self, body: Body, seed: int, common: Common) -> Float32Array:
        """Read the update; values that are not finite are refused."""
        body.must_be_plain()
        return unpack_floats(body.data, common.count)

    def max_body_bytes(self, shapes: Shapes) -> int:
        """32 bits a weight."""
        return 4 * sum(sizes_of(shapes))
