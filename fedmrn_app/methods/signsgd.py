"""SignSGD with stochastic signs (Safaryan and Richtarik 2021, "Stochastic Sign Descent Methods", section 3).

An element x becomes +1 with probability 1/2 + x / 2B and -1 otherwise, with B = max |x| of its tensor; `B * sign` has
the expectation x. With error feedback the sign is that of x and the scale the mean of |x| (Karimireddy et al. 2019,
"Error Feedback Fixes SignSGD", Algorithm 1), which is biased and contracts, as error feedback needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from fedmrn_app.methods import Common, PostTraining
from fedmrn_app.noise import Float32Array
from fedmrn_app.shapes import Shapes, sizes_of
from fedmrn_app.wire.bits import packed_size
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.masks import Evidence, pack_mask, unpack_mask
from fedmrn_app.wire.values import pack_floats, unpack_scales


@dataclass(frozen=True)
class SignSGD(PostTraining):
    """Body: a float32 scale for each tensor, then the signs as a mask."""

    name = "signsgd"
    code = 4

    error_feedback: bool = False

    @property
    def feeds_errors_back(self) -> bool:
        """Whether clients keep a residual."""
        return self.error_feedback

    def compress(self, x: Float32Array, seed: int, common: Common, random: np.random.Generator) -> Body:
        """Draw the signs, or take them."""
        sizes = sizes_of(common.shapes)
        tensors = np.split(x, np.cumsum(sizes)[:-1])
        size = np.mean if self.error_feedback else np.max
        scales = np.array([size(np.abs(tensor)) for tensor in tensors], np.float32)
        if self.error_feedback:
            bits = x >= 0
        else:
            bound = np.repeat(scales, sizes)
            # u in [0, 1): 2Bu - B < x with probability (x + B) / 2B
            bits = (2 * random.random(x.size, np.float32) - 1) * bound < x
        # stochastic signs are as good as random
        signs = pack_mask(bits, partial(_evidence, common), self.coder if self.error_feedback else "packed")
        return Body(pack_floats(scales) + bytes(signs.data), signs.coder)

    def decode(self, body: Body, seed: int, common: Common) -> Float32Array:
        """Return scale times sign."""
        sizes = sizes_of(common.shapes)
        scales, rest = unpack_scales(body.data, len(sizes))
        update = np.repeat(scales, sizes)
        update *= 2 * unpack_mask(Body(rest, body.coder), common.count, partial(_evidence, common)).view(np.int8) - 1
        return update

    def max_body_bytes(self, shapes: Shapes) -> int:
        """One bit a weight and 32 a tensor."""
        return 4 * len(shapes) + packed_size(sum(sizes_of(shapes)))


def _evidence(common: Common) -> Evidence:
    """A weight is likely to go on where it went."""
    return Evidence(common.shapes, np.zeros_like(common.trend), trend=common.trend)
