"""TernGrad: elements become -s, 0 or s, tensor by tensor (Wen et al. 2017, sections 3.1 and 3.3).

The update is clipped at 2.5 standard deviations; then s = max |x|, and an element keeps its sign with probability
|x| / s and is zero otherwise, so that the clipped update is the expectation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.method import Codec, Method, MethodConfig, RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.validation import Positive
from fedmrn_app.wire.body import Body, Coder
from fedmrn_app.wire.primitives import pack_floats, unpack_scales
from fedmrn_app.wire.ternary import max_trit_bytes, pack_trits, unpack_trits


@dataclass(frozen=True)
class Ternary(Codec):
    """Body: for each tensor a float32 scale, then the trits. `clip` is in standard deviations."""

    clip: float
    coder: Coder

    def encode(self, x: Float32Array, known: SharedContext, seed: int, private_seed: int) -> Body:
        """Draw the trits and code them."""
        random = np.random.default_rng(private_seed)
        scales, trits = [], []
        for tensor in known.layout.split(x):
            limit = np.float32(self.clip) * tensor.std()
            clipped = np.clip(tensor, -limit, limit)
            size = np.abs(clipped)
            scale = size.max()
            kept = random.random(tensor.size, np.float32) * scale < size
            scales.append(scale)
            trits.append((np.sign(clipped) * kept).astype(np.int8))
        body = pack_trits(np.concatenate(trits), known.motion, self.coder)
        return Body(pack_floats(np.array(scales, np.float32)) + bytes(body.data), body.form)

    def decode(self, body: Body, known: SharedContext, seed: int) -> Float32Array:
        """Return scale times trit."""
        sizes = known.layout.sizes
        scales, rest = unpack_scales(body.data, len(sizes))
        update = np.repeat(scales, sizes)
        update *= unpack_trits(Body(rest, body.form), known.count, known.motion)
        return update

    def max_bytes(self, layout: Layout) -> int:
        """Five weights per byte and 32 bits per tensor."""
        return 4 * len(layout.shapes) + max_trit_bytes(layout.count)


@dataclass(frozen=True)
class TernGrad(MethodConfig):
    """Options: `clip`, in standard deviations of the tensor."""

    name = "terngrad"
    code = 6

    clip: Positive = 2.5

    def build(self, run: RunOptions) -> Method:
        """Plain SGD, then trits."""
        return Method(self.name, self.code, Ternary(self.clip, run.coder), packing=run.downlink)
