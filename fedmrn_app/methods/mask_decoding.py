"""Masked noise as the server reads it: the bits are kept, and the noise is made again where it is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.kernels import philox
from fedmrn_app.kernels.mask_rans_plain import Evidence
from fedmrn_app.kernels.thresholds import Rows, measure
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.contribution import BLOCK, Contribution
from fedmrn_app.methods.randomized_response import RandomizedResponse
from fedmrn_app.noise import Noise
from fedmrn_app.wire.mask_model import Part


class AnyNoise(Protocol):
    """The noise of one reply, in whatever form it is there."""

    def add_masked(self, factors: NDArray[np.int8], first: int, share: np.float32, total: Float32Array) -> None:
        """Add noise * factor * share to `total` (n,), which begins at element `first`, a multiple of BLOCK.

        The factors are -1, 0 and 1, int8 (n,).
        """


class NoiseRows(AnyNoise, Protocol):
    """Noise of which any part can be had."""

    def rows(self, part: Part, runs: slice) -> Float32Array:
        """The noise of some runs of a part, float32 (runs, width), not to be changed."""


@dataclass(frozen=True)
class UniformNoise:
    """Uniform noise, made anew each time by compiled loops.

    Attributes:
        seed: the reply's.
        alpha: its scale.
    """

    seed: int
    alpha: float

    def rows(self, part: Part, runs: slice) -> Float32Array:
        """See `NoiseRows`."""
        noise = np.empty((runs.stop - runs.start, part.last - part.first), np.float32)
        start = part.start + runs.start * part.run + part.first
        philox.fill_rows(self.seed, start, part.run, np.float32(self.alpha), noise)
        return noise

    def add_masked(self, factors: NDArray[np.int8], first: int, share: np.float32, total: Float32Array) -> None:
        """See `AnyNoise`."""
        philox.add_masked(self.seed, first, np.float32(self.alpha), factors, share, total)


@dataclass(frozen=True)
class WholeNoise:
    """Any noise as a vector, float32 (d,)."""

    noise: Float32Array

    def rows(self, part: Part, runs: slice) -> Float32Array:
        """See `NoiseRows`."""
        return np.ascontiguousarray(part.view(self.noise)[runs])

    def add_masked(self, factors: NDArray[np.int8], first: int, share: np.float32, total: Float32Array) -> None:
        """See `AnyNoise`."""
        masked = self.noise[first : first + total.size] * factors
        masked *= share
        total += masked


@dataclass(frozen=True)
class NoiseBlocks:
    """Noise of any distribution and one scale, made a block at a time."""

    noise: Noise
    seed: int

    def add_masked(self, factors: NDArray[np.int8], first: int, share: np.float32, total: Float32Array) -> None:
        """See `AnyNoise`."""
        for start, block in self.noise.blocks(self.seed, first + total.size, first):
            part = slice(start - first, start - first + block.size)
            block *= factors[part]
            block *= share
            total[part] += block


@dataclass(frozen=True)
class MaskedNoise(Contribution):
    """A mask, eight bits a byte as `pack_bits` makes them, and the noise it is of; signed ones negate the noise.

    Where clients flip bits, what is added has the expectation of the masked noise without flips.
    """

    bits: NDArray[np.uint8]
    noise: AnyNoise
    signed: bool
    flips: RandomizedResponse | None = None

    def add_to(self, total: Float32Array, share: np.float32, first: int = 0) -> None:
        """See `Contribution`."""
        if self.flips is not None:
            share = share * np.float32(self.flips.gain)
        for start in range(0, total.size, BLOCK):
            part, at = total[start : start + BLOCK], first + start
            kept = np.unpackbits(self.bits[at // 8 :], count=part.size, bitorder="little").view(np.int8)
            if self.signed:
                kept += kept
                kept -= np.int8(1)
            self.noise.add_masked(kept, at, share, part)
            if self.flips is not None and not self.signed:
                self.noise.add_masked(np.ones_like(kept), at, -share * np.float32(self.flips.probability), part)


@dataclass(frozen=True)
class ThresholdSide:
    """What both sides know of a mask that was drawn: how far its thresholds are, found for some runs at a time.

    A bit, turned round where the threshold is against the noise, is set if the update is beyond the threshold. That is
    rare where the threshold is large, and where the weight has gone the other way so far.

    Attributes:
        layout: of the tensors.
        noise: of the reply.
        key: of the uniforms of the draw.
        scale: what the size of a threshold is multiplied by, to be at most 1.
        flips: whether masks are signed, and bits therefore turned round.
        trend: where each weight has gone so far, float32 (d,) in [-1, 1].
    """

    layout: Layout
    noise: NoiseRows
    key: int
    scale: np.float32
    flips: bool
    trend: Float32Array
    trending: bool = True

    def evidence(self, part: Part, runs: slice) -> Evidence:
        """See `Side` in `wire/mask_model.py`."""
        rows = Rows(part.start + runs.start * part.run + part.first, part.run)
        noise = self.noise.rows(part, runs)
        return measure(noise, rows, self.key, self.scale, self.flips, self.trend)
