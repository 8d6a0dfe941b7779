"""Scalar quantizers of the standard normal distribution, symmetric about zero, whose centroids are the means of cells.

`lloyd_max` has the least mean squared error of a number of levels. Max 1960, "Quantizing for Minimum Distortion",
equations 4 and 5: each boundary is the midpoint of two centroids. `uniform` has cells of equal width, as the published
code of EDEN has for entropy coding: at the same error the coded levels take 4 to 6 % fewer bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.kernels.scalar_quantizer import nearest_multiples, reached_boundaries, values_of_levels
from fedmrn_app.layout import Float32Array

# the positive half, by the number of bits; cells in steps of 2^-24
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

# the levels above zero; steps are on a grid of 2^-12, and so exact in float32
_STEPS = {2: 1.08251953125, 3: 0.5224609375, 4: 0.259033203125}
_UNIFORM_CENTROIDS = {
    2: (0.9829747420842062, 1.9771681709888198, 2.9885101808489076, 4.017042325288798, 5.062140095657575),
    3: (0.5106985920781204, 1.021482708928011, 1.5324349359149896, 2.043632199708923, 2.5551434611349135,
        3.067027961382191, 3.5793340986178466, 4.092098945440288, 4.605348358554453, 5.1510875536875025),
    4: (0.257588159507566, 0.5151769666016227, 0.772767067486836, 1.0303591056107193, 1.2879537203012486,
        1.5455515454237598, 1.8031532080633113, 2.0607593272384914, 2.3183705126523977, 2.575987363486222,
        2.833610467240538, 3.091240398629018, 3.348877718528908, 3.6065229729921553, 3.864176692320637,
        4.121839390208464, 4.379511562953865, 4.637193688742657, 4.8948862270048314, 5.235993136281751),
}  # fmt: skip
_UNIFORM_CELLS = {
    2: (4059295, 818889, 55804, 1260, 9),
    3: (3025717, 2027698, 1040550, 408846, 122979, 28314, 4989, 672, 69, 6),
    4: (1672182, 1512923, 1280478, 1013793, 750841, 520197, 337139, 204395, 115918, 61497,
        30519, 14168, 6153, 2499, 950, 338, 112, 35, 10, 4),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Quantizer(ABC):
    """A quantizer with levels in ascending order.

    Attributes:
        centroids: the value of each level, float64 (levels,).
        cells: the probability of each level in steps of 2^-24, int64 (levels,); they are integers, so that writer and
            reader of a coded body have the same.
    """

    centroids: NDArray[np.float64]
    cells: NDArray[np.int64]

    @abstractmethod
    def quantize(self, y: Float32Array, factor: np.float32) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
        """Return the level of each element times a factor, and the product of the element and the level's centroid.

        Args:
            y: float32 (n,).
            factor: one over the standard deviation.

        Returns:
            uint8 (n,) and float64 (n,).
        """

    def values(self, levels: NDArray[np.uint8]) -> Float32Array:
        """Return the centroid of each level of uint8 (n,), float32 (n,)."""
        return values_of_levels(levels, self.centroids.astype(np.float32))


@dataclass(frozen=True, eq=False)
class LloydMax(Quantizer):
    """A quantizer with 2^bits levels, whose boundaries are the midpoints of centroids."""

    @property
    def boundaries(self) -> NDArray[np.float64]:
        """The boundaries between the levels, float64 (2^bits - 1,); a value on a boundary has the upper level."""
        return (self.centroids[1:] + self.centroids[:-1]) / 2

    def quantize(self, y: Float32Array, factor: np.float32) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
        """Return the number of boundaries that each element reaches, see `Quantizer.quantize`."""
        return reached_boundaries(y, factor, self.boundaries.astype(np.float32), self.centroids.astype(np.float32))


@dataclass(frozen=True, eq=False)
class Uniform(Quantizer):
    """A quantizer with cells of equal width around multiples of it; the outermost ones hold all that lies beyond.

    Attributes:
        step: width of a cell, of standard deviations.
    """

    step: float

    def quantize(self, y: Float32Array, factor: np.float32) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
        """Return the nearest multiple of the step, see `Quantizer.quantize`; halves go to the even one."""
        return nearest_multiples(y, factor, np.float32(self.step), self.centroids.astype(np.float32))


@cache
def lloyd_max(bits: int) -> LloydMax:
    """Return the quantizer with 2^bits levels, for 1 to 4 bits."""
    half, cells = np.array(_CENTROIDS[bits]), np.array(_CELLS[bits], np.int64)
    return LloydMax(np.concatenate([-half[::-1], half]), np.concatenate([cells[::-1], cells]))


@cache
def uniform(bits: int) -> Uniform:
    """Return the quantizer whose levels have an entropy of 2 to 4 bits: 11, 21 or 41 levels."""
    half, cells = np.array(_UNIFORM_CENTROIDS[bits]), np.array(_UNIFORM_CELLS[bits], np.int64)
    middle = (1 << 24) - 2 * cells.sum()
    return Uniform(
        np.concatenate([-half[::-1], [0.0], half]), np.concatenate([cells[::-1], [middle], cells]), _STEPS[bits]
    )
