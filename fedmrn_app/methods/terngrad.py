"""TernGrad: the elements of an update become -s, 0 or s, tensor by tensor.

Wen et al. 2017, "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning", sections 3.1 and
3.3. The update is clipped at 2.5 standard deviations. Then s = max |x|, and an element keeps its sign with probability
|x| / s and is zero otherwise, so that its expectation is the clipped update.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.method import Codec, CodecLimits, Method, MethodConfig, RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.validation import Positive
from fedmrn_app.wire.body import Body, Coder
from fedmrn_app.wire.primitives import pack_floats, unpack_scales
from fedmrn_app.wire.ternary import max_trit_bytes, pack_trits, unpack_trits


@dataclass(frozen=True)
class TernGrad(MethodConfig):
    """TernGrad.

    Attributes:
        clip: bound of an element, in standard deviations of its tensor.
    """

    name = "terngrad"
    code = 6

    clip: Positive = 2.5

    def build(self, run: RunOptions) -> Method:
        """Return plain SGD with a codec of trits."""
        return self.compressor(run, Ternary(self.clip, run.coder))


@dataclass(frozen=True)
class Ternary(Codec):
    """Body: a float32 scale for each tensor, then the trits."""

    clip: float
    coder: Coder

    def encode(self, x: Float32Array, context: SharedContext, seed: int, private_seed: int) -> Body:
        """Clip, and draw the trits."""
        random = np.random.default_rng(private_seed)
        scales, trits = [], []
        for tensor in context.layout.split(x):
            limit = np.float32(self.clip) * tensor.std()
            clipped = np.clip(tensor, -limit, limit)
            magnitude = np.abs(clipped)
            scale = magnitude.max()
            kept = random.random(tensor.size, np.float32) * scale < magnitude
            scales.append(scale)
            trits.append((np.sign(clipped) * kept).astype(np.int8))
        body = pack_trits(np.concatenate(trits), context.motion, self.coder)
        return Body(pack_floats(np.array(scales, np.float32)) + bytes(body.data), body.form)

    def decode(self, body: Body, context: SharedContext, seed: int) -> Float32Array:
        """Return scale times trit."""
        sizes = context.layout.sizes
        scales, rest = unpack_scales(body.data, len(sizes))
        update = np.repeat(scales, sizes)
        update *= unpack_trits(Body(rest, body.form), context.count, context.motion)
        return update

    def limits(self, layout: Layout) -> CodecLimits:
        """Allow one byte per five weights and 32 bits per tensor."""
        return CodecLimits(max_bytes=4 * len(layout.shapes) + max_trit_bytes(layout.count))
