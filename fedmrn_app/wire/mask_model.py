"""The probability of each bit of a mask, from what both sides know: the model, apart from the coder in `masks.py`.

What they know is the side information: a size a in [0, 1] of each weight, such as the noise's, and a sign and a trend,
such as the noise's sign and where the weight has moved so far. Large tensors are coded in three parts, cut across the
input channels, so that the later parts are predicted from the earlier ones too: from the mean of their bits in the same
row (output channel) and of size * sign * bit in the same run (output channel and position in the kernel). In each part
of each tensor P(bit = 1) is linear in 1, a, a^2 and, for each other predictor q, q and a q; the sender fits the
coefficients. The probabilities fall into 32 levels, fine at both ends. Only operations that IEEE 754 rounds exactly,
and sums of whole numbers, lead from side information to level, so every machine finds the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array, Layout

T = TypeVar("T", bound=np.generic)

LEVELS = 32
_STEPS = 4096  # resolution of the way from probability to level
_SAMPLE = 1 << 13  # bits of a part that its coefficients are fitted to, at least where there are as many
_CUT_SIZE, _CUT_RUN = 1 << 14, 8  # the fewest elements, of a tensor and of a run, that are coded in three parts


@dataclass(frozen=True)
class SideInformation:
    """What both sides know about the bits of tensors with d elements in all, before they are coded.

    Attributes:
        layout: of the tensors.
        size: float32 (d,) in [0, 1].
        sign: float32 (d,) of -1 and 1, where a bit that is set moves its weight; None if always the same way.
        trend: float32 (d,) in [-1, 1], where the weight is expected to move, times the sign; None if that is unknown.
        flipped: bool (d,), which bits are turned round before they are coded; the rest of this is about bits turned so.
    """

    layout: Layout
    size: Float32Array
    sign: Float32Array | None = None
    trend: Float32Array | None = None
    flipped: NDArray[np.bool_] | None = None

    @cached_property
    def effect(self) -> Float32Array:
        """What a set bit does to its weight, float32 (d,), in whole numbers: their sums are exact in any order."""
        effect = self.size * np.float32(128)
        np.trunc(effect, out=effect)
        if self.sign is not None:
            effect *= self.sign
        return effect


@dataclass(frozen=True)
class Part:
    """Elements first..last of each run of one tensor; a run is what lies next to each other in memory."""

    start: int
    runs: int
    runs_per_row: int
    run: int
    first: int
    last: int

    @property
    def count(self) -> int:
        """Number of elements of the part."""
        return self.runs * (self.last - self.first)

    def tensor(self, vector: NDArray[T]) -> NDArray[T]:
        """The whole tensor in `vector` (d,), shape (runs, run)."""
        return vector[self.start : self.start + self.runs * self.run].reshape(self.runs, self.run)

    def view(self, vector: NDArray[T]) -> NDArray[T]:
        """The part in `vector` (d,), shape (runs, last - first)."""
        return self.tensor(vector)[:, self.first : self.last]

    def of(self, vector: NDArray[T]) -> NDArray[T]:
        """The part in `vector` (d,), shape (count,)."""
        return self.view(vector).reshape(-1)


def parts_of(layout: Layout) -> Iterator[list[Part]]:
    """The parts that are coded first, those that are coded when they are known, and so on."""
    for phase in range(3):
        parts = []
        for number, (size, start) in enumerate(zip(layout.sizes, layout.offsets, strict=True)):
            run, runs_per_row = layout.runs(number)
            cut = size >= _CUT_SIZE and run >= _CUT_RUN
            cuts = (0, run // 8, run // 2, run) if cut else (0, run, run, run)
            if cuts[phase] < cuts[phase + 1]:
                parts.append(Part(start, size // run, runs_per_row, run, cuts[phase], cuts[phase + 1]))
        if parts:
            yield parts


def stride(count: int, wanted: int) -> int:
    """A step through `count` elements that meets `wanted` or more of them, odd so that it meets all channels."""
    return max(1, count // wanted - 1) | 1


def term_count(part: Part, side: SideInformation) -> int:
    """Number of coefficients of a part."""
    return 3 + 2 * ((side.trend is not None) + 2 * (part.first > 0))


def predictors_of(
    part: Part, side: SideInformation, bits: NDArray[np.bool_]
) -> tuple[Float32Array, list[Float32Array]]:
    """The sizes a of a part and its other predictors q, float32 (count,); of `bits` only earlier parts are read."""
    a = part.of(side.size)
    predictors = []
    if side.trend is not None:
        predictors.append(part.of(side.trend))
    if part.first > 0:
        known = part.tensor(bits)[:, : part.first].astype(np.float32)
        rows = known.sum(1).reshape(-1, part.runs_per_row).sum(1)
        effects = (part.tensor(side.effect)[:, : part.first] * known).sum(1)
        q = np.repeat(effects / np.float32(128 * (part.first + 4)), part.last - part.first)
        if side.sign is not None:
            q *= part.of(side.sign)
        predictors.append(q)
        density = rows / np.float32(part.first * part.runs_per_row)
        density -= np.float32(rows.sum(dtype=np.float64)) / np.float32(part.first * part.runs)
        predictors.append(np.repeat(density, part.runs_per_row * (part.last - part.first)))
    return a, predictors


def fit(bits: NDArray[np.bool_], a: Float32Array, predictors: list[Float32Array]) -> NDArray[np.float16]:
    """Least squares on a sample, a little towards zero so that useless predictors do no harm."""
    every = stride(bits.size, max(_SAMPLE, bits.size // 16))
    y, a = bits[::every].astype(np.float32), a[::every]
    columns = [np.ones_like(y), a, a * a]
    for q in predictors:
        columns += [q[::every], q[::every] * a]
    x = np.stack(columns)
    mean = y.mean()  # the constant is not drawn to zero
    ridge = (1e-6 * y.size + 1e-3) * np.eye(len(x))
    solution = np.linalg.solve((x @ x.T).astype(np.float64) + ridge, (x @ (y - mean)).astype(np.float64))
    solution[0] += mean
    return np.clip(solution, -60000, 60000).astype("<f2")


def levels_of(c: NDArray[np.float16], a: Float32Array, predictors: list[Float32Array]) -> NDArray[np.uint8]:
    """The level of each bit's probability, uint8 (count,); every operation here must round alike everywhere."""
    c = c.astype(np.float32) * np.float32(_STEPS)
    p = a * c[2]
    p += c[1]
    for number, q in enumerate(predictors):
        p += q * c[4 + 2 * number]
    p *= a
    p += c[0]
    for number, q in enumerate(predictors):
        p += q * c[3 + 2 * number]
    np.clip(p, 0, _STEPS - 1, out=p)
    levels: NDArray[np.uint8] = _level_table().take(p.astype(np.uint16))
    return levels


def probability_at(x: float) -> float:
    """Probability at x in [0, 1] along the levels; their distances shrink towards 0 and 1 as the coding loss asks."""
    return x * x * (3 - 2 * x)


@cache
def _level_table() -> NDArray[np.uint8]:
    """The level of each step of probability: the last one that starts at or before the step's middle."""
    starts = [probability_at(level / LEVELS) for level in range(LEVELS)]
    middles = (np.arange(_STEPS) + 0.5) / _STEPS
    table: NDArray[np.uint8] = (np.searchsorted(starts, middles, side="right") - 1).astype(np.uint8)
    return table
