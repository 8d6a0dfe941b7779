"""EDEN: the rotated update, quantized to the centroids of a normal variable.

Vargaftik et al. 2022, "EDEN: Communication-Efficient and Robust Distributed Mean Estimation for Federated Learning".
The coordinates of the rotated update R x are nearly normal. They are divided by their root mean square and quantized
to one of 2^b Lloyd-Max centroids, Q. The server rotates S Q back, and S = norm2(x)^2 / <R x, Q> makes that unbiased.
The squared error is D / (1 - D) times norm2(x)^2, with the distortion D of the quantizer: 0.571, 0.133, 0.0358 and
0.00959 times for 1 to 4 bits. Levels are not equally probable, so that 2 to 4 bits are coded in 1.911, 2.825 and 3.765.
Uniform levels are more and take 2 to 4 bits after coding, for errors of 0.0976, 0.0227 and 0.00559 times.

With one bit the centroids are +-sqrt(2 / pi), which is DRIVE with its unbiased scale up to rounding. The scale S is one
for each stretch of coordinates with the same distribution (`hadamard.stretch_lengths`), so that the errors above hold
for each stretch of an update whose parts have different sizes. The published code pads x to a power of two, which takes
up to twice the bits, and sends one scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.contribution import Contribution
from fedmrn_app.methods.drive import RotatedSigns
from fedmrn_app.methods.hadamard import rotated_blocks, stretch_lengths, stretches_of
from fedmrn_app.methods.method import Codec, CodecLimits, Method, MethodConfig, RunOptions, conflict
from fedmrn_app.methods.quantizers import Quantizer, lloyd_max, uniform
from fedmrn_app.methods.rotated import RotatedContribution, finite_rotate_back, repeated, surely_finite
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import generate_noise
from fedmrn_app.seeds import mix
from fedmrn_app.validation import Share
from fedmrn_app.wire.body import Body, Coder
from fedmrn_app.wire.eden_levels import decode_eden_levels, encode_eden_levels, max_eden_bytes
from fedmrn_app.wire.primitives import pack_floats, unpack_scales

Levels = Literal["lloyd_max", "uniform"]


@dataclass(frozen=True)
class Eden(MethodConfig):
    """EDEN.

    Attributes:
        bits: bits per coordinate that is sent, before coding; with uniform levels after coding.
        levels: "lloyd_max" for 2^bits centroids of the least error, or "uniform" for cells of equal width, which take
            4 to 6 % fewer bits at the same error where `uplink.coder=auto`, and 4 to 6 bits where it is `packed`.
        share: probability with which a coordinate is sent, for less than one bit per weight (`RandomSubset`).
        error_feedback: add what an upload leaves out to the next update.
    """

    name = "eden"
    code = 8
    layouts = (
        {}, {"bits": 2}, {"bits": 3}, {"bits": 4},
        {"levels": "uniform", "bits": 2}, {"levels": "uniform", "bits": 4},
    )  # fmt: skip

    bits: Literal[1, 2, 3, 4] = 1
    levels: Levels = "lloyd_max"
    share: Share = 1.0
    error_feedback: bool = False

    def build(self, run: RunOptions) -> Method:
        """Return plain SGD with a codec of rotated signs or levels."""
        if self.bits == 1 and self.levels == "uniform":
            reason = "levels of one bit are zero for a whole stretch at times; set strategy.bits to 2, 3 or 4"
            raise conflict("strategy.levels", self.levels, reason)
        codec: Codec = EdenSigns() if self.bits == 1 else EdenLevels(self.bits, self.levels, run.coder)
        if self.share < 1:
            codec = RandomSubset(codec, self.share)
        return self.compressor(run, codec, error_feedback=self.error_feedback)


class EdenSigns(RotatedSigns):
    """The codec with two centroids."""

    centroid: ClassVar[float] = math.sqrt(2 / math.pi)

    def scale_of(self, norm1: float, square: float, size: int) -> float:
        """Return norm2^2 / <y, Q>; Q is the sign times the centroid."""
        return square / (self.centroid * norm1)


@dataclass(frozen=True)
class EdenLevels(Codec):
    """Body: a float32 scale for each stretch of coordinates, then a level per weight, plain or coded."""

    bits: int
    levels: Levels
    coder: Coder

    @property
    def quantizer(self) -> Quantizer:
        """The quantizer of rotated coordinates in units of their root mean square."""
        return (lloyd_max if self.levels == "lloyd_max" else uniform)(self.bits)

    def encode(self, x: Float32Array, context: SharedContext, seed: int, private_seed: int) -> Body:
        """Rotate, quantize, and compute the scales."""
        levels, scales, quantizer = [np.zeros(0, np.uint8)], [], self.quantizer
        for block in rotated_blocks(x, seed):
            for y in stretches_of(block):
                found, scale = quantize_stretch(y, quantizer)
                levels.append(found)
                scales.append(scale)
        body = encode_eden_levels(np.concatenate(levels), quantizer.cells, self.coder)
        return Body(pack_floats(np.array(scales, np.float32)) + bytes(body.data), body.form)

    def decode(self, body: Body, context: SharedContext, seed: int) -> Float32Array:
        """Scale the centroids and rotate back."""
        scales, levels = self._parts(body, context.count)
        rotated = self.quantizer.values(levels)
        with np.errstate(over="ignore"):  # the result is checked
            rotated *= np.repeat(scales, stretch_lengths(context.count))
        return finite_rotate_back(rotated, seed)

    def read(self, body: Body, context: SharedContext, seed: int) -> Contribution:
        """Decode the levels, which are rotated back while they are added."""
        scales, levels = self._parts(body, context.count)
        quantizer, lengths = self.quantizer, stretch_lengths(context.count)
        with np.errstate(over="ignore"):
            if not surely_finite(scales * np.float32(np.abs(quantizer.centroids).max())):
                return super().read(body, context, seed)

        def coordinates(start: int, stop: int) -> Float32Array:
            rotated = quantizer.values(levels[start:stop])
            rotated *= repeated(scales, lengths, start, stop)
            return rotated

        return RotatedContribution(coordinates, seed, context.count)

    def _parts(self, body: Body, count: int) -> tuple[Float32Array, NDArray[np.uint8]]:
        """Return the scales of the stretches, and the levels of the coordinates.

        Raises:
            PayloadError: the body is not one of `encode`.
        """
        scales, rest = unpack_scales(body.data, len(stretch_lengths(count)))
        return scales, decode_eden_levels(Body(rest, body.form), count, self.quantizer.cells)

    def limits(self, layout: Layout) -> CodecLimits:
        """Allow a level per weight in its plain form, and 32 bits per stretch."""
        scales = 4 * len(stretch_lengths(layout.count))
        size = scales + max_eden_bytes(layout.count, len(self.quantizer.cells))
        return CodecLimits(max_bytes=size, read_copies=1.0)


@dataclass(frozen=True)
class RandomSubset(Codec):
    """Body: that of a codec for the coordinates of a random subset of x, each divided by its probability of being sent.

    The subset follows from the server's seed, so it is not sent. The estimate is unbiased if the codec is. Its squared
    error over norm2(x)^2 is (1 + e) / share - 1, where e is that of the codec. The published code does the same for
    less than one bit.
    """

    codec: Codec
    share: float

    def encode(self, x: Float32Array, context: SharedContext, seed: int, private_seed: int) -> Body:
        """Encode the coordinates of the subset."""
        kept = self._kept(context, seed)
        part = x[kept] / np.float32(self.share)
        return self.codec.encode(part, _context_of(part.size), seed, private_seed)

    def decode(self, body: Body, context: SharedContext, seed: int) -> Float32Array:
        """Return an update that is zero outside of the subset."""
        kept = self._kept(context, seed)
        x = np.zeros(context.count, np.float32)
        x[kept] = self.codec.decode(body, _context_of(int(kept.sum())), seed)
        return x

    def limits(self, layout: Layout) -> CodecLimits:
        """Allow what the codec needs for all coordinates."""
        return self.codec.limits(layout)

    def _kept(self, context: SharedContext, seed: int) -> NDArray[np.bool_]:
        """Return which coordinates are sent, bool (d,)."""
        return generate_noise(mix(seed), context.count, "uniform", 1.0) < np.float32(2 * self.share - 1)


def _context_of(count: int) -> SharedContext:
    """Return what both sides know of a vector of `count` elements: its length."""
    nothing = np.zeros(count, np.float32)
    return SharedContext(Layout(((count,),)), nothing, nothing)


def quantize_stretch(y: Float32Array, quantizer: Quantizer) -> tuple[NDArray[np.uint8], np.float32]:
    """Return the levels of rotated coordinates, uint8 (n,), and their scale norm2(y)^2 / <y, Q>, zero for y = 0.

    Args:
        y: coordinates of one distribution, float32 (n,).
        quantizer: quantizer of a standard normal variable.
    """
    square = float(np.square(y, dtype=np.float64).sum())  # in float32, squares of large or small values overflow
    levels, products = quantizer.quantize(y, np.float32(math.sqrt(y.size / square) if square else 0))
    product = float(products.sum())
    return levels, np.float32(square / product if square else 0)
