"""The Lloyd-Max quantizers of the standard normal distribution, which have the least mean squared error.

Max 1960, "Quantizing for Minimum Distortion", equations 4 and 5: each centroid is the conditional mean of its cell, and
each boundary is the midpoint of two centroids. All of them are symmetric about zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array

_BLOCK = 1 << 15  # elements that are compared at a time, so that temporaries stay in cache

# the positive half, by the number of bits
_CENTROIDS = {
    1: (0.7978845608028654,),
    2: (0.452780034636492, 1.5104176084990955),
    3: (0.24509417894422167, 0.7560052812058773, 1.343909278505, 2.1519457045369874),
    4: (0.128395029851147, 0.3880482994902902, 0.6567591185324634, 0.9423404564869614,
        1.2562311973471771, 1.6180463860218826, 2.0690172265313866, 2.732589570995163),
}  # fmt: skip
_CELLS = {
    1: (8388608,),
    2: (5651426, 2737182),
    3: (3215454, 2709103, 1788964, 675087),
    4: (1709298, 1634491, 1488287, 1277822, 1014727, 716615, 410138, 137230),
}


@dataclass(frozen=True, eq=False)
class LloydMax:
    """A quantizer with the levels 0 to 2^bits - 1, in ascending order.

    Attributes:
        bits: from 1 to 4.
        centroids: the value of each level, float64 (2^bits,).
        cells: the probability of each level in steps of 2^-24, int64 (2^bits,); they are integers, so that writer and
            reader of a coded body have the same.
    """

    bits: int
    centroids: NDArray[np.float64]
    cells: NDArray[np.int64]

    @property
    def boundaries(self) -> NDArray[np.float64]:
        """The boundaries between the levels, float64 (2^bits - 1,); a value on a boundary has the upper level."""
        return (self.centroids[1:] + self.centroids[:-1]) / 2

    def quantize(self, x: Float32Array) -> NDArray[np.uint8]:
        """Return the level of each element of float32 (n,), uint8 (n,): the number of boundaries that it reaches."""
        levels = np.zeros(x.size, np.uint8)
        boundaries = self.boundaries.astype(np.float32)
        for start in range(0, x.size, _BLOCK):
            part, out = x[start : start + _BLOCK], levels[start : start + _BLOCK]
            for boundary in boundaries:  # comparisons vectorize, a binary search does not
                out += (part >= boundary).view(np.uint8)
        return levels

    def values(self, levels: NDArray[np.uint8]) -> Float32Array:
        """Return the centroid of each level of uint8 (n,), float32 (n,)."""
        values: Float32Array = np.take(self.centroids.astype(np.float32), levels)
        return values


@cache
def lloyd_max(bits: int) -> LloydMax:
    """Return the quantizer with 2^bits levels, for 1 to 4 bits."""
    half, cells = np.array(_CENTROIDS[bits]), np.array(_CELLS[bits], np.int64)
    return LloydMax(bits, np.concatenate([-half[::-1], half]), np.concatenate([cells[::-1], cells]))
