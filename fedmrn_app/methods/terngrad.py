"""TernGrad: elements become -s, 0 or s, tensor by tensor (Wen et al. 2017, sections 3.1 and 3.3).

The update is clipped at 2.5 standard deviations; then s = max |x|, and an element keeps its sign with probability
|x| / s and is zero otherwise, so that the clipped update is the expectation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmrn_app.errors import ConfigError
from fedmrn_app.methods import Common, PostTraining
from fedmrn_app.noise import Float32Array
from fedmrn_app.shapes import Shapes, sizes_of
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.trits import max_trit_bytes, pack_trits, unpack_trits
from fedmrn_app.wire.values import pack_floats, unpack_scales


@dataclass(frozen=True)
class TernGrad(PostTraining):
    """Body: for each tensor a float32 scale, then the trits."""

    name = "terngrad"
    code = 6

    clip: float = 2.5  # standard deviations

    def __post_init__(self) -> None:
        if not self.clip > 0:
            raise ConfigError(f"strategy.clip={self.clip}: must be above 0")

    def compress(self, x: Float32Array, seed: int, common: Common, random: np.random.Generator) -> Body:
        """Draw the trits and code them."""
        scales, trits = [], []
        for tensor in np.split(x, np.cumsum(sizes_of(common.shapes))[:-1]):
            limit = np.float32(self.clip) * tensor.std()
            clipped = np.clip(tensor, -limit, limit)
            size = np.abs(clipped)
            scale = size.max()
            kept = random.random(tensor.size, np.float32) * scale < size
            scales.append(scale)
            trits.append((np.sign(clipped) * kept).astype(np.int8))
        body = pack_trits(np.concatenate(trits), common.motion, self.coder)
        return Body(pack_floats(np.array(scales, np.float32)) + bytes(body.data), body.coder)

    def decode(self, body: Body, seed: int, common: Common) -> Float32Array:
        """Return scale times trit."""
        sizes = sizes_of(common.shapes)
        scales, rest = unpack_scales(body.data, len(sizes))
        update = np.repeat(scales, sizes)
        update *= unpack_trits(Body(rest, body.coder), common.count, common.motion)
        return update

    def max_body_bytes(self, shapes: Shapes) -> int:
        """Five weights a byte and 32 bits a tensor."""
        return 4 * len(shapes) + max_trit_bytes(sum(sizes_of(shapes)))
