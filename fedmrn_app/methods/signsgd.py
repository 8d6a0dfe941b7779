"""SignSGD with stochastic signs (Safaryan and Richtarik 2021, "Stochastic Sign Descent Methods", section 3).

An element x becomes +1 with probability 1/2 + x / 2B and -1 otherwise, with B = max |x| of its tensor; `B * sign` has
the expectation x. With error feedback the sign is that of x and the scale the mean of |x| (Karimireddy et al. 2019,
"Error Feedback Fixes SignSGD", Algorithm 1), which is biased and contracts, as error feedback needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.method import Codec, Method, MethodConfig, RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.body import Body, Coder
from fedmrn_app.wire.mask_model import SideInformation
from fedmrn_app.wire.masks import pack_mask, unpack_mask
from fedmrn_app.wire.primitives import pack_floats, packed_size, unpack_scales


@dataclass(frozen=True)
class Signs(Codec):
    """Body: a float32 scale for each tensor, then the signs as a mask. `stochastic` signs are drawn, others taken."""

    stochastic: bool
    coder: Coder

    def encode(self, x: Float32Array, known: SharedContext, seed: int, private_seed: int) -> Body:
        """Draw the signs, or take them."""
        size = np.max if self.stochastic else np.mean
        scales = np.array([size(np.abs(tensor)) for tensor in known.layout.split(x)], np.float32)
        if self.stochastic:
            bound = np.repeat(scales, known.layout.sizes)
            # u in [0, 1): 2Bu - B < x with probability (x + B) / 2B
            u = np.random.default_rng(private_seed).random(x.size, np.float32)
            bits = (2 * u - 1) * bound < x
        else:
            bits = x >= 0
        # stochastic signs are as good as random
        signs = pack_mask(bits, partial(_side, known), "packed" if self.stochastic else self.coder)
        return Body(pack_floats(scales) + bytes(signs.data), signs.form)

    def decode(self, body: Body, known: SharedContext, seed: int) -> Float32Array:
        """Return scale times sign."""
        sizes = known.layout.sizes
        scales, rest = unpack_scales(body.data, len(sizes))
        update = np.repeat(scales, sizes)
        update *= 2 * unpack_mask(Body(rest, body.form), known.count, partial(_side, known)).view(np.int8) - 1
        return update

    def max_bytes(self, layout: Layout) -> int:
        """One bit per weight and 32 per tensor."""
        return 4 * len(layout.shapes) + packed_size(layout.count)


@dataclass(frozen=True)
class SignSGD(MethodConfig):
    """Options: `error_feedback` takes signs and mean magnitudes, and adds what they miss to the next update."""

    name = "signsgd"
    code = 4

    error_feedback: bool = False

    def build(self, run: RunOptions) -> Method:
        """Plain SGD, then signs."""
        codec = Signs(not self.error_feedback, run.coder)
        return Method(self.name, self.code, codec, packing=run.downlink, error_feedback=self.error_feedback)


def _side(known: SharedContext) -> SideInformation:
    """A weight is likely to go on where it went."""
    return SideInformation(known.layout, np.zeros_like(known.trend), trend=known.trend)
