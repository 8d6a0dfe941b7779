"""The probability of each bit of a mask, from what both sides know: the model, apart from the coder in `masks.py`.

What they know is the side information: a size a in [0, 1] of each weight, such as the noise's, and a sign and a trend,
such as the noise's sign and where the weight has moved so far. Large tensors are coded in three parts, cut across the
input channels, so that the later parts are predicted from the earlier ones too: from the mean of their bits in the same
row (output channel) and of size * sign * bit in the same run (output channel and position in the kernel). In each part
of each tensor P(bit = 1) is linear in 1, a, a^2 and, for each other predictor q, q and a q, where a = (1 + k) s /
(1 + k s) and s is the size; the sender fits the coefficients, and k to how small the sizes of set bits are. Only
operations that IEEE 754 rounds exactly, and sums of whole numbers, lead from there to the shares that
`kernels/mask_rans_plain.py` codes by, so every machine finds the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.kernels.mask_rans_plain import GRAIN, STEPS, Evidence
from fedmrn_app.layout import Float32Array, Layout

T = TypeVar("T", bound=np.generic)

_SAMPLE, _SHARE = 1 << 13, 64  # bits of a part that its coefficients are fitted to, at least; one in so many
_SMALL = 0.25  # mean size of set bits below which sizes are bent
_PIECE = 1 << 17  # elements that are decoded at a time: fewer would leave threads waiting for the interpreter
_CUT_SIZE, _CUT_RUN = 1 << 14, 8  # the fewest elements, of a tensor and of a run, that are coded in three parts


class Side(Protocol):
    """What both sides know about the bits of tensors with d elements in all, before they are coded."""

    @property
    def layout(self) -> Layout:
        """Of the tensors."""

    @property
    def trending(self) -> bool:
        """Whether evidence has a trend."""

    @property
    def flips(self) -> bool:
        """Whether some bits are turned round before they are coded."""

    def evidence(self, part: Part, runs: slice) -> Evidence:
        """What is known of some runs of a part, in memory of its own or not to be changed."""


@dataclass(frozen=True)
class SideInformation:
    """A side that is there in whole vectors.

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

    @property
    def trending(self) -> bool:
        """See `Side`."""
        return self.trend is not None

    @property
    def flips(self) -> bool:
        """See `Side`."""
        return self.flipped is not None

    def evidence(self, part: Part, runs: slice) -> Evidence:
        """See `Side`."""

        def of(vector: NDArray[T]) -> NDArray[T]:
            return np.ascontiguousarray(part.view(vector)[runs])

        sign, trend = (None if vector is None else of(vector) for vector in (self.sign, self.trend))
        return Evidence(of(self.size), sign, trend, None if self.flipped is None else of(self.flipped))


class Kernels(Protocol):
    """What finds shares: `kernels/mask_rans.py` or, bit for bit the same, `kernels/mask_rans_plain.py`."""

    def count_runs(self, evidence: Evidence, bits: NDArray[np.uint8], /) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See there."""

    def find_shares(
        self, evidence: Evidence, c: Float32Array, bend: np.float32, push: Float32Array, density: Float32Array, /
    ) -> NDArray[np.uint16]:
        """See there."""


@dataclass(frozen=True)
class Part:
    """Elements first..last of each run of one tensor; a run is what lies next to each other in memory."""

    tensor: int
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

    def view(self, vector: NDArray[T]) -> NDArray[T]:
        """The part in `vector` (d,), shape (runs, last - first)."""
        tensor = vector[self.start : self.start + self.runs * self.run].reshape(self.runs, self.run)
        return tensor[:, self.first : self.last]

    def pieces(self) -> Iterator[slice]:
        """The runs some at a time, so that what is known of them takes little memory; eights, as the coder's lanes."""
        step = max(8, _PIECE // (self.last - self.first) // 8 * 8)
        for start in range(0, self.runs, step):
            yield slice(start, min(start + step, self.runs))


def all_parts(layout: Layout) -> Iterator[Part]:
    """The parts in the order in which they are coded."""
    for phase in range(3):
        for number, (size, start) in enumerate(zip(layout.sizes, layout.offsets, strict=True)):
            run, runs_per_row = layout.runs(number)
            cut = size >= _CUT_SIZE and run >= _CUT_RUN
            cuts = (0, run // 8, run // 2, run) if cut else (0, run, run, run)
            if cuts[phase] < cuts[phase + 1]:
                yield Part(number, start, size // run, runs_per_row, run, cuts[phase], cuts[phase + 1])


def stride(count: int, wanted: int) -> int:
    """A step through `count` elements that meets `wanted` or more of them, odd so that it meets all channels."""
    return max(1, count // wanted - 1) | 1


def term_count(part: Part, trending: bool) -> int:
    """Number of coefficients of a part, the bend among them."""
    return 4 + 2 * (trending + 2 * (part.first > 0))


@dataclass(frozen=True)
class Hints:
    """What the earlier parts tell of each run of a part; both float32 (runs,)."""

    push: Float32Array
    density: Float32Array


class Past:
    """What has been coded so far of tensors that are cut into parts."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._counts: dict[int, NDArray[np.int64]] = {}
        self._effects: dict[int, NDArray[np.int64]] = {}

    def note(self, part: Part, runs: slice, evidence: Evidence, bits: NDArray[np.uint8]) -> None:
        """Note the bits of some runs of a part as they are coded, (runs, width), unless it is its tensor's last."""
        if part.last == part.run:
            return
        counts, effects = self._kernels.count_runs(evidence, bits)
        for sums, found in ((self._counts, counts), (self._effects, effects)):
            sums.setdefault(part.tensor, np.zeros(part.runs, np.int64))[runs] += found

    def hints(self, part: Part) -> Hints:
        """What follows for a part from those before it."""
        if part.first == 0:
            return Hints(np.zeros(part.runs, np.float32), np.zeros(part.runs, np.float32))
        counts, effects = self._counts[part.tensor], self._effects[part.tensor]
        push = effects.astype(np.float32) / np.float32(GRAIN * (part.first + 4))
        rows = counts.reshape(-1, part.runs_per_row).sum(1).astype(np.float32)
        density = rows / np.float32(part.first * part.runs_per_row)
        density -= np.float32(counts.sum()) / np.float32(part.first * part.runs)
        return Hints(push, np.repeat(density, part.runs_per_row))


def fit(part: Part, e: Evidence, coded: NDArray[np.uint8], hints: Hints) -> NDArray[np.float16]:
    """The bend and the coefficients, by least squares on a sample, a little towards zero lest useless ones do harm.

    Args:
        part: of a tensor.
        e: what is known of all its runs.
        coded: its bits, (runs, width).
        hints: of the earlier parts.
    """
    step = stride(coded.size, max(_SAMPLE, coded.size // _SHARE))

    def some(values: NDArray[T]) -> NDArray[T]:
        return values.reshape(-1)[::step]

    bits, a = some(coded).view(np.bool_), some(e.size)
    typical = float(a[bits].mean(dtype=np.float64)) if bits.any() else 1.0
    bend = np.float16(min(1 / (3 * typical), 1000) if 0 < typical < _SMALL else 0)
    y = bits.astype(np.float32)
    x = np.empty((term_count(part, e.trend is not None) - 1, y.size), np.float32)
    x[0] = 1
    np.divide(a * np.float32(1 + bend), a * np.float32(bend) + 1, out=x[1])
    np.multiply(x[1], x[1], out=x[2])
    predictors = [] if e.trend is None else [some(e.trend)]
    if part.first > 0:
        run = np.arange(0, coded.size, step) // coded.shape[1]
        push = hints.push[run]
        predictors += [push if e.sign is None else push * some(e.sign), hints.density[run]]
    for number, q in enumerate(predictors):
        x[3 + 2 * number] = q
        np.multiply(q, x[1], out=x[4 + 2 * number])
    mean = y.mean()  # the constant is not drawn to zero
    ridge = (1e-6 * y.size + 1e-3) * np.eye(len(x))
    solution = np.linalg.solve((x @ x.T).astype(np.float64) + ridge, (x @ (y - mean)).astype(np.float64))
    solution[0] += mean
    return np.append(bend, np.clip(solution, -60000, 60000)).astype("<f2")


def shares_of(
    evidence: Evidence, fitted: NDArray[np.float16], hints: Hints, runs: slice, kernels: Kernels
) -> NDArray[np.uint16]:
    """The shares of the bits of some runs of a part, uint16 (runs * width,)."""
    c = np.zeros(9, np.float32)
    c[:3] = fitted[1:4]
    rest = 5 if evidence.trend is None else 3
    c[rest : rest + fitted.size - 4] = fitted[4:]
    bend = np.float32(fitted[0])
    return kernels.find_shares(evidence, c * np.float32(STEPS), bend, hints.push[runs], hints.density[runs])
