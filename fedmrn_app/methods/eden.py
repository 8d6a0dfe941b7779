"""EDEN: the rotated update, quantised to the centroids of a normal variable.

Vargaftik et al. 2022, "EDEN: Communication-Efficient and Robust Distributed Mean Estimation for Federated Learning".
The coordinates of the rotated update R x are nearly normal. Divided by their root mean square they are quantised to one
of 2^b Lloyd-Max centroids, Q; the server rotates S Q back, and S = norm2(x)^2 / <R x, Q> makes that unbiased. Its
squared error is D / (1 - D) times norm2(x)^2, D being the quantiser's distortion: 0.571, 0.133, 0.0358 and 0.00959
times for 1 to 4 bits. The levels are not equally probable, so that 2 to 4 bits are coded in 1.911, 2.825 and 3.765.

With one bit the centroids are +-sqrt(2 / pi): up to rounding DRIVE with its unbiased scale. It has a scale for each
block, as DRIVE has; more bits have one for each stretch of alike coordinates. In a last block that is no power of two
one bit therefore makes parts of x that are larger than the rest a little smaller than they are, and the rest larger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.drive import RotatedSigns, ratio_or_zero, update_of
from fedmrn_app.methods.hadamard import rotate, stretch_lengths
from fedmrn_app.methods.method import Codec, Method, MethodConfig, RunOptions
from fedmrn_app.methods.quantizers import LloydMax, lloyd_max
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.body import Body, Coder
from fedmrn_app.wire.primitives import pack_floats, unpack_scales
from fedmrn_app.wire.quantized import max_level_bytes, pack_levels, unpack_levels

Bits = Literal[1, 2, 3, 4]


class EdenSigns(RotatedSigns):
    """Two centroids."""

    centroid: ClassVar[float] = math.sqrt(2 / math.pi)

    def block_scales(self, rotated: Float32Array) -> Float32Array:
        """norm2^2 / <Q(R x), R x> of each row, Q being the sign times the centroid."""
        return ratio_or_zero(np.square(rotated).sum(1), np.float32(self.centroid) * np.abs(rotated).sum(1))


@dataclass(frozen=True)
class EdenLevels(Codec):
    """Body: a float32 scale for each stretch of alike coordinates, then a level per weight, plain or coded."""

    bits: int
    coder: Coder

    def encode(self, x: Float32Array, known: SharedContext, seed: int, private_seed: int) -> Body:
        """Rotate, quantise, fit the scales."""
        quantiser = lloyd_max(self.bits)
        stretches = np.split(rotate(x, seed), np.cumsum(stretch_lengths(x.size))[:-1])
        scaled = [quantise_stretch(y, quantiser) for y in stretches]
        scales = np.array([scale for _, scale in scaled], np.float32)
        body = pack_levels(np.concatenate([levels for levels, _ in scaled]), quantiser.cells, self.coder)
        return Body(pack_floats(scales) + bytes(body.data), body.form)

    def decode(self, body: Body, known: SharedContext, seed: int) -> Float32Array:
        """Scale the centroids and rotate back."""
        quantiser, lengths = lloyd_max(self.bits), stretch_lengths(known.count)
        scales, rest = unpack_scales(body.data, len(lengths))
        rotated = quantiser.values(unpack_levels(Body(rest, body.form), known.count, quantiser.cells))
        with np.errstate(over="ignore"):  # what comes of it is checked
            rotated *= np.repeat(scales, lengths)
        return update_of(rotated, seed)

    def max_bytes(self, layout: Layout) -> int:
        """`bits` per weight and 32 per stretch."""
        return 4 * len(stretch_lengths(layout.count)) + max_level_bytes(layout.count, self.bits)


def quantise_stretch(y: Float32Array, quantiser: LloydMax) -> tuple[NDArray[np.uint8], np.float32]:
    """The levels of rotated coordinates, uint8 (n,), and their scale norm2(y)^2 / <y, Q>, zero where y is.

    Args:
        y: float32 (n,) of one distribution.
        quantiser: of a standard normal variable.
    """
    square = float(np.square(y, dtype=np.float64).sum())  # float32 has no room for the squares of large or small ones
    levels = quantiser.quantise(y * np.float32(math.sqrt(y.size / square) if square else 0))
    product = float(np.multiply(y, quantiser.values(levels), dtype=np.float64).sum())
    return levels, np.float32(square / product if square else 0)


@dataclass(frozen=True)
class Eden(MethodConfig):
    """Options.

    Attributes:
        bits: per weight, before coding.
        error_feedback: adds what an upload misses to the next update.
    """

    name = "eden"
    code = 8
    layouts = ({}, {"bits": 2}, {"bits": 3}, {"bits": 4})

    bits: Bits = 1
    error_feedback: bool = False

    def build(self, run: RunOptions) -> Method:
        """Plain SGD, then signs or levels of the rotated update."""
        codec = EdenSigns() if self.bits == 1 else EdenLevels(self.bits, run.coder)
        return Method(self.name, self.code, codec, packing=run.downlink, error_feedback=self.error_feedback)
