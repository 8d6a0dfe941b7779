"""DRIVE: the signs of the randomly rotated update, and a scale.

Vargaftik et al. 2021, "DRIVE: One-bit Distributed Mean Estimation", sections 3 to 5. The client rotates its update x
with a seeded randomized Hadamard transform R and sends the signs of R x and a scale S; the server rotates `S * sign`
back. S = norm2(x)^2 / norm1(R x) makes the estimate unbiased, and S = norm1(R x) / d minimizes its squared error. The
second scale is better for one estimate; its estimate is 2 / pi times as long as x. The first, which the published code
has, is better for the mean over many clients, whose errors cancel. The second is the default here because the first one
is EDEN with one bit, up to rounding. DRIVE has one bit per weight; `eden.py` has more.

The scale is one for each stretch of coordinates with the same distribution (`hadamard.stretch_lengths`), as if each
stretch were a vector of its own. The published code pads x to a power of two and sends one scale.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedmrn_app.errors import PayloadError
from fedmrn_app.kernels.signs import multiply_by_signs
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.hadamard import block_lengths, rotate, rotate_back_in_place, stretch_lengths, stretches_of
from fedmrn_app.methods.method import Codec, CodecLimits, Method, MethodConfig, RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.primitives import all_finite, pack_bits, pack_floats, packed_bits, packed_size, unpack_scales

DriveScale = Literal["least_mse", "unbiased"]


@dataclass(frozen=True)
class Drive(MethodConfig):
    """DRIVE.

    Attributes:
        scale: which of the two scales is sent.
        error_feedback: add what an upload leaves out to the next update.
    """

    name = "drive"
    code = 7

    scale: DriveScale = "least_mse"
    error_feedback: bool = False

    def build(self, run: RunOptions) -> Method:
        """Return plain SGD with a codec of rotated signs."""
        codec = DriveSigns(self.scale)
        return self.compressor(run, codec, error_feedback=self.error_feedback)


class RotatedSigns(Codec):
    """Body: a float32 scale for each stretch of coordinates, then one bit per weight."""

    centroid: ClassVar[float] = 1.0  # the value of a positive sign before scaling

    @abstractmethod
    def scale_of(self, norm1: float, square: float, size: int) -> float:
        """Return the scale of a stretch y of `size` coordinates, where y is not zero.

        Args:
            norm1: sum of |y|.
            square: sum of y^2.
            size: number of coordinates.
        """

    def encode(self, x: Float32Array, context: SharedContext, seed: int, private_seed: int) -> Body:
        """Rotate, take the signs, and compute the scales."""
        rotated = rotate(x, seed)
        scales = np.array([self._scale(y) for y in stretches_of(rotated)], np.float32)
        return Body(pack_floats(scales) + pack_bits(rotated >= 0))

    def decode(self, body: Body, context: SharedContext, seed: int) -> Float32Array:
        """Scale the signs and rotate back."""
        body.must_be_plain()  # signs of rotated weights cannot be predicted
        lengths, blocks = stretch_lengths(context.count), block_lengths(context.count)
        if len(body.data) == 4 * len(blocks) + packed_size(context.count):
            lengths = blocks  # fedmrn 0.1 wrote one scale per block, four bytes fewer where the last has two stretches
        scales, rest = unpack_scales(body.data, len(lengths))
        rotated = np.repeat(scales * np.float32(self.centroid), lengths)
        multiply_by_signs(rotated, packed_bits(rest, context.count))
        return finite_rotate_back(rotated, seed)

    def limits(self, layout: Layout) -> CodecLimits:
        """Allow one bit per weight and 32 per stretch."""
        return CodecLimits(max_bytes=4 * len(stretch_lengths(layout.count)) + packed_size(layout.count))

    def _scale(self, y: Float32Array) -> float:
        """Return the scale of a stretch y, float32 (n,), zero for y = 0."""
        norm1 = float(np.abs(y).sum(dtype=np.float64))
        square = float(np.square(y, dtype=np.float64).sum())  # in float32, squares overflow
        return self.scale_of(norm1, square, y.size) if square else 0.0


@dataclass(frozen=True)
class DriveSigns(RotatedSigns):
    """The codec of DRIVE, with either scale."""

    scale: DriveScale

    def scale_of(self, norm1: float, square: float, size: int) -> float:
        """Return norm1 / n or norm2^2 / norm1 (section 4 and theorem 3 of the paper)."""
        return norm1 / size if self.scale == "least_mse" else square / norm1


def finite_rotate_back(rotated: Float32Array, seed: int) -> Float32Array:
    """Return the update of decoded coordinates, float32 (d,), in their memory.

    Raises:
        PayloadError: the update is not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        rotate_back_in_place(rotated, seed)
    if not all_finite(rotated):
        raise PayloadError("body has scales so large that the update is not finite", code="not-finite")
    return rotated
