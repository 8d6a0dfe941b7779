"""Masked noise as the server holds it: the bits of the mask, and the seed of the noise.

Seeded noise is generated again wherever it is needed, so that a reply takes a bit per weight until it is added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.kernels import philox
from fedmrn_app.kernels.mask_rans import Evidence
from fedmrn_app.kernels.thresholds import Rows, Thresholds, measure
from fedmrn_app.layout import Float32Array, Layout, blocks
from fedmrn_app.methods.contribution import Contribution
from fedmrn_app.methods.mask_estimate import Estimate
from fedmrn_app.methods.randomized_response import RandomizedResponse
from fedmrn_app.noise import Noise
from fedmrn_app.wire.mask_model import Part


@dataclass(frozen=True)
class ReplyNoise:
    """The noise `G(seed)` of one reply.

    Attributes:
        noise: its distribution.
        seed: its seed.
        vector: the noise, float32 (d,); None if it is generated again each time, a block at a time.
    """

    noise: Noise
    seed: int
    vector: Float32Array | None = None

    @property
    def largest(self) -> float:
        """The largest magnitude of the noise."""
        return self.noise.largest * self.noise.alpha

    def rows(self, part: Part, runs: slice) -> Float32Array:
        """Return the noise of some runs of a part, float32 (runs, width); only uniform noise can be generated."""
        if self.vector is not None:
            return np.ascontiguousarray(part.view(self.vector)[runs])
        assert self.noise.distribution == "uniform"
        rows = np.empty((runs.stop - runs.start, part.last - part.first), np.float32)
        start = part.start + runs.start * part.run + part.first
        philox.fill_rows(self.seed, start, part.run, np.float32(self.noise.alpha), rows)
        return rows

    def block(self, part: slice) -> Float32Array:
        """Return the noise of some consecutive elements, float32 (n,); only uniform noise can be generated."""
        if self.vector is not None:
            return self.vector[part]
        assert self.noise.distribution == "uniform"
        rows = np.empty((1, part.stop - part.start), np.float32)
        philox.fill_rows(self.seed, part.start, rows.size, np.float32(self.noise.alpha), rows)
        return rows.reshape(-1)

    def add_masked(self, factors: NDArray[np.int8], first: int, weight: np.float32, total: Float32Array) -> None:
        """Add noise * factor * weight to `total`, in place.

        Args:
            factors: -1, 0 and 1, int8 (n,).
            first: place of the first element in the flat vector, a multiple of BLOCK.
            weight: factor of the contribution.
            total: float32 (n,).
        """
        if self.vector is not None:
            masked = self.vector[first : first + total.size] * factors
            masked *= weight
            total += masked
        elif self.noise.distribution == "uniform":
            philox.add_masked(self.seed, first, np.float32(self.noise.alpha), factors, weight, total)
        else:
            for start, block in self.noise.blocks(self.seed, first + total.size, first):
                part = slice(start - first, start - first + block.size)
                block *= factors[part]
                block *= weight
                total[part] += block


@dataclass(frozen=True)
class MaskedNoise(Contribution):
    """Noise times a mask.

    Attributes:
        bits: the mask, packed as `pack_bits` packs it.
        noise: the noise.
        signed: whether a bit that is not set negates the noise; otherwise it drops the noise.
        randomized_response: of the bits, None for none; its expected effect is removed from what is added.
    """

    bits: NDArray[np.uint8]
    noise: ReplyNoise
    signed: bool
    randomized_response: RandomizedResponse | None = None

    def add_to(self, total: Float32Array, weight: np.float32, first: int = 0) -> None:
        """Add a piece of the masked noise, block by block."""
        if self.randomized_response is not None:
            weight = weight * np.float32(self.randomized_response.gain)
        for block in blocks(total.size):
            part, place = total[block], first + block.start
            factors = np.unpackbits(self.bits[place // 8 :], count=part.size, bitorder="little").view(np.int8)
            if self.signed:
                factors += factors
                factors -= np.int8(1)
            self.noise.add_masked(factors, place, weight, part)
            if self.randomized_response is not None and not self.signed:
                offset = -weight * np.float32(self.randomized_response.probability)
                self.noise.add_masked(np.ones_like(factors), place, offset, part)


@dataclass(frozen=True)
class MaskBits(Contribution):
    """The bits of a mask as 0 and 1, whose sums with whole weights are exact up to 2^24.

    Attributes:
        bits: the mask, packed as `pack_bits` packs it.
    """

    bits: NDArray[np.uint8]

    def add_to(self, total: Float32Array, weight: np.float32, first: int = 0) -> None:
        """Add a piece of the mask, block by block."""
        for block in blocks(total.size):
            part = total[block]
            part += weight * np.unpackbits(self.bits[(first + block.start) // 8 :], count=part.size, bitorder="little")


@dataclass(frozen=True, kw_only=True)
class ThresholdSideInfo:
    """Side information of a stochastic mask: its thresholds, computed block by block.

    A bit, inverted where the threshold has not the sign of the noise, is set if the update exceeds the threshold. That
    is rare where the threshold is large, and where the weight has moved in the other direction so far. With an estimate
    of the update it is rare where the threshold is far from the estimate.

    Attributes:
        layout: layout of the tensors.
        noise: noise of the reply.
        thresholds: of the mask.
        drift: returns the direction in which weights have moved so far, of some runs of a part, float32 (runs, width).
        estimate: of the update, times the scale of the thresholds; None for zeros.
        has_drift: always true here.
    """

    layout: Layout
    noise: ReplyNoise
    thresholds: Thresholds
    drift: Callable[[Part, slice], Float32Array]
    estimate: Estimate | None = None
    has_drift: bool = True

    def read(self, part: Part, runs: slice) -> Evidence:
        """Return the side information of some runs of a part."""
        rows = Rows(part.start + runs.start * part.run + part.first, part.run)
        estimate = None if self.estimate is None else self.estimate.rows(part, runs)
        return measure(self.thresholds, self.noise.rows(part, runs), rows, self.drift(part, runs), estimate)
