"""SignSGD with stochastic signs: an update becomes a sign per element and a scale per tensor.

Safaryan and Richtarik 2021, "Stochastic Sign Descent Methods", section 3. An element x becomes +1 with probability
1/2 + x / 2B and -1 otherwise, with B = max |x| of its tensor, so that `B * sign` has the expectation x.

With error feedback the sign is that of x and the scale is the mean of |x| (Karimireddy et al. 2019, "Error Feedback
Fixes SignSGD", Algorithm 1): a biased estimate that contracts, as error feedback requires.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.method import Codec, CodecLimits, Method, MethodConfig, RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.body import Body, Coder
from fedmrn_app.wire.mask_model import SideInformation
from fedmrn_app.wire.masks import pack_mask, unpack_mask
from fedmrn_app.wire.primitives import pack_floats, packed_size, unpack_scales


@dataclass(frozen=True)
class SignSGD(MethodConfig):
    """SignSGD.

    Attributes:
        error_feedback: send deterministic signs, and add what an upload leaves out to the next update.
    """

    name = "signsgd"
    code = 4

    error_feedback: bool = False

    def build(self, run: RunOptions) -> Method:
        """Return plain SGD with a codec of signs."""
        codec = Signs(stochastic=not self.error_feedback, coder=run.coder)
        return self.compressor(run, codec, error_feedback=self.error_feedback)


@dataclass(frozen=True)
class Signs(Codec):
    """Body: a float32 scale for each tensor, then the signs as a mask."""

    stochastic: bool
    coder: Coder

    def encode(self, x: Float32Array, context: SharedContext, seed: int, private_seed: int) -> Body:
        """Draw or take the signs."""
        magnitude = np.max if self.stochastic else np.mean
        scales = np.array([magnitude(np.abs(tensor)) for tensor in context.layout.split(x)], np.float32)
        if self.stochastic:
            bound = np.repeat(scales, context.layout.sizes)
            # u in [0, 1): 2Bu - B < x with probability (x + B) / 2B
            u = np.random.default_rng(private_seed).random(x.size, np.float32)
            bits = (2 * u - 1) * bound < x
        else:
            bits = x >= 0
        coder = "packed" if self.stochastic else self.coder  # stochastic signs cannot be predicted
        signs = pack_mask(bits, partial(_side_info, context), coder)
        return Body(pack_floats(scales) + bytes(signs.data), signs.form)

    def decode(self, body: Body, context: SharedContext, seed: int) -> Float32Array:
        """Return scale times sign."""
        sizes = context.layout.sizes
        scales, rest = unpack_scales(body.data, len(sizes))
        update = np.repeat(scales, sizes)
        signs = unpack_mask(Body(rest, body.form), context.count, partial(_side_info, context))
        update *= 2 * signs.view(np.int8) - 1
        return update

    def limits(self, layout: Layout) -> CodecLimits:
        """Allow one bit per weight and 32 per tensor."""
        return CodecLimits(max_bytes=4 * len(layout.shapes) + packed_size(layout.count))


def _side_info(context: SharedContext) -> SideInformation:
    """Return the drift: a weight is likely to move on in the direction in which it has moved."""
    return SideInformation(context.layout, np.zeros_like(context.drift), drift=context.drift)
