"""SignSGD with stochastic signs (Safaryan and Richtarik 2021, "Stochastic Sign Descent Methods", section 3).

An element x becomes +1 with probability 1/2 + x / 2B and -1 otherwise, with B = max |x| of its tensor; `B * sign` has
the expectation x. With error feedback the sign is that of x and the scale the mean of |x| (Karimireddy et al. 2019,
"Error Feedback Fixes SignSGD", Algorithm 1), which is biased and contracts, as error feedback needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmrn_app.learning.flat import Shapes, sizes_of
from fedmrn_app.methods import PostTraining
from fedmrn_app.noise import Float32Array
from fedmrn_app.wire.bits import pack_bits, packed_size, unpack_bits
from fedmrn_app.wire.values import pack_floats, unpack_scales


@dataclass(frozen=True)
class SignSGD(PostTraining):
    """Body: a float32 scale for each tensor, then one bit a weight."""

    name = "signsgd"
    code = 4

    error_feedback: bool = False

    @property
    def feeds_errors_back(self) -> bool:
        """Whether clients keep a residual."""
        return self.error_feedback

    def compress(self, x: Float32Array, shapes: Shapes, seed: int, random: np.random.Generator) -> bytes:
        """Draw the signs, or take them."""
        tensors = np.split(x, np.cumsum(sizes_of(shapes))[:-1])
        size = np.mean if self.error_feedback else np.max
        scales = np.array([size(np.abs(tensor)) for tensor in tensors], np.float32)
        if self.error_feedback:
            bits = x >= 0
        else:
            bound = np.repeat(scales, sizes_of(shapes))
            # u in [0, 1): 2Bu - B < x with probability (x + B) / 2B
            bits = (2 * random.random(x.size, np.float32) - 1) * bound < x
        return pack_floats(scales) + pack_bits(bits)

    def decode(self, body: bytes | memoryview, seed: int, shapes: Shapes) -> Float32Array:
        """Return scale times sign."""
        sizes = sizes_of(shapes)
        scales, rest = unpack_scales(body, len(sizes))
        update = np.repeat(scales, sizes)
        update *= 2 * unpack_bits(rest, sum(sizes)).view(np.int8) - 1
        return update

    def max_body_bytes(self, shapes: Shapes) -> int:
        """One bit a weight and 32 a tensor."""
        return 4 * len(shapes) + packed_size(sum(sizes_of(shapes)))
