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
from numpy.typing import NDArray

from fedmrn_app.kernels.signs import multiply_by_signs
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.contribution import Contribution
from fedmrn_app.methods.hadamard import block_lengths, rotated_blocks, stretch_lengths, stretches_of
from fedmrn_app.methods.method import Codec, CodecLimits, Method, MethodConfig, RunOptions
from fedmrn_app.methods.rotated import READ_COPIES, RotatedContribution, finite_rotate_back, repeated, surely_finite
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.primitives import pack_bits, pack_floats, packed_bits, packed_size, unpack_scales

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
        scales, signs = [], []
        for block in rotated_blocks(x, seed):
            scales += [self._scale(y) for y in stretches_of(block)]
            signs.append(pack_bits(block >= 0))
        return Body(pack_floats(np.array(scales, np.float32)) + b"".join(signs))

    def decode(self, body: Body, context: SharedContext, seed: int) -> Float32Array:
        """Scale the signs and rotate back."""
        scales, lengths, signs = self._parts(body, context.count)
        rotated = np.repeat(scales, lengths)
        multiply_by_signs(rotated, signs)
        return finite_rotate_back(rotated, seed)

    def read(self, body: Body, context: SharedContext, seed: int) -> Contribution:
        """Check the body, whose signs are rotated back while they are added."""
        scales, lengths, signs = self._parts(body, context.count)
        if not surely_finite(scales):
            return super().read(body, context, seed)

        def coordinates(start: int, stop: int) -> Float32Array:
            rotated = repeated(scales, lengths, start, stop)
            multiply_by_signs(rotated, signs[start // 8 : packed_size(stop)])
            return rotated

        return RotatedContribution(coordinates, seed, context.count)

    def _parts(self, body: Body, count: int) -> tuple[Float32Array, list[int], NDArray[np.uint8]]:
        """Return the value of a positive sign in each stretch, the lengths of the stretches, and the packed signs.

        Raises:
            PayloadError: the body is not one of `encode`.
        """
        body.must_be_plain()  # signs of rotated weights cannot be predicted
        lengths, blocks = stretch_lengths(count), block_lengths(count)
        if len(body.data) == 4 * len(blocks) + packed_size(count):
            lengths = blocks  # fedmrn 0.1 wrote one scale per block, four bytes fewer where the last has two stretches
        scales, rest = unpack_scales(body.data, len(lengths))
        return scales * np.float32(self.centroid), lengths, packed_bits(rest, count)

    def limits(self, layout: Layout) -> CodecLimits:
        """Allow one bit per weight and 32 per stretch."""
        size = 4 * len(stretch_lengths(layout.count)) + packed_size(layout.count)
        return CodecLimits(max_bytes=size, read_copies=READ_COPIES)

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
