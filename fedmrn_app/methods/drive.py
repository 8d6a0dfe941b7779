"""DRIVE: the signs of the randomly rotated update and a scale (Vargaftik et al. 2021, sections 3 to 5).

The client rotates its update x by a seeded randomised Hadamard transform R and sends the signs of R x and a scale S for
each block of the rotation; the server rotates `S * sign` back. S = norm2(x)^2 / norm1(R x) makes that unbiased,
S = norm1(R x) / d makes its squared error least. Of one estimate the second is the better one; of the mean over many
clients the first, whose errors cancel, and their published code has it. The default is the second all the same: the
first is EDEN with one bit, up to its scale, and so there is a name for either. One bit per weight is all that the paper
has; for more bits there is EDEN, see `eden.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.hadamard import block_lengths, rotate, rotate_back
from fedmrn_app.methods.method import Codec, Method, MethodConfig, RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.primitives import pack_bits, pack_floats, packed_size, unpack_bits, unpack_scales

Scale = Literal["least_mse", "unbiased"]


class RotatedSigns(Codec):
    """Body: a float32 scale for each block of the rotation, then one bit per weight."""

    centroid: ClassVar[float] = 1.0  # what a sign stands for before scaling

    @abstractmethod
    def block_scales(self, rotated: Float32Array) -> Float32Array:
        """The scale of each row of `rotated` (blocks, n), float32 (blocks,)."""

    def encode(self, x: Float32Array, known: SharedContext, seed: int, private_seed: int) -> Body:
        """Rotate, take signs, fit the scales."""
        rotated = rotate(x, seed)
        whole = rotated.size - rotated.size % block_lengths(rotated.size)[0]
        scales = [self.block_scales(rotated[:whole].reshape(-1, block_lengths(rotated.size)[0]))]
        if whole < rotated.size:
            scales.append(self.block_scales(rotated[None, whole:]))
        return Body(pack_floats(np.concatenate(scales)) + pack_bits(rotated >= 0))

    def decode(self, body: Body, known: SharedContext, seed: int) -> Float32Array:
        """Scale the signs and rotate back."""
        body.must_be_plain()  # signs of rotated weights are as good as random
        lengths = block_lengths(known.count)
        scales, rest = unpack_scales(body.data, len(lengths))
        rotated = np.repeat(scales * np.float32(self.centroid), lengths)
        rotated *= 2 * unpack_bits(rest, known.count).view(np.int8) - 1
        return update_of(rotated, seed)

    def max_bytes(self, layout: Layout) -> int:
        """One bit per weight and 32 per block."""
        return 4 * len(block_lengths(layout.count)) + packed_size(layout.count)


@dataclass(frozen=True)
class DriveSigns(RotatedSigns):
    """DRIVE with either scale."""

    scale: Scale

    def block_scales(self, rotated: Float32Array) -> Float32Array:
        """norm1 / n or norm2^2 / norm1 of each row."""
        norm1 = np.abs(rotated).sum(1)
        if self.scale == "least_mse":
            scales: Float32Array = norm1 / np.float32(rotated.shape[1])
            return scales
        return ratio_or_zero(np.square(rotated).sum(1), norm1)


@dataclass(frozen=True)
class Drive(MethodConfig):
    """Options: `scale`, and `error_feedback`, which adds what an upload misses to the next update."""

    name = "drive"
    code = 7

    scale: Scale = "least_mse"
    error_feedback: bool = False

    def build(self, run: RunOptions) -> Method:
        """Plain SGD, then signs of the rotated update."""
        codec = DriveSigns(self.scale)
        return Method(self.name, self.code, codec, packing=run.downlink, error_feedback=self.error_feedback)


def update_of(rotated: Float32Array, seed: int) -> Float32Array:
    """Rotate back what a body stands for, float32 (d,).

    Raises:
        PayloadError: what comes of it is not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        update = rotate_back(rotated, seed)
    if not np.isfinite(update).all():
        raise PayloadError("body holds scales so large that the update is not finite")
    return update


def ratio_or_zero(numerator: Float32Array, denominator: Float32Array) -> Float32Array:
    """numerator / denominator, and zero where the denominator is."""
    ratio: Float32Array = np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)
    return ratio
