"""The probability of each bit of a mask: the model, apart from the coder in `masks.py`.

    side information of each weight             bits of the earlier parts
    size s, sign, drift                                     |
        |                                                   v
        v                                          context of each run:
    a = (1 + k) s / (1 + k s)                      run effect, row density
        |                                                   |
        v                                                   v
    P(bit = 1) = c0 + c1 a + c2 a^2 + sum over the predictors q of (c q + c' a q)  <--  k, c: fitted and sent
        |
        v
    whole steps of 2^-12  -->  coder, `kernels/mask_rans.py`  -->  bytes

Both sides know the side information before the mask is coded: a size in [0, 1] and a sign, such as those of the noise,
and a drift, the direction in which the weight has moved so far. Large tensors are coded in three parts, cut across the
input channels, so that the later parts are predicted from the earlier ones too. The run effect is the mean of
size * sign * bit in the same run (output channel and position in the kernel), and the row density is the mean of the
bits in the same row (output channel) less that of the tensor. The predictors q are the drift, the run effect times the
sign, and the row density. The sender fits the coefficients c, and the curvature k to how small the sizes of set bits
are; both are sent for each part of each tensor.

Only sums of integers and operations that IEEE 754 rounds exactly lead from there to the probabilities, so every machine
finds the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.kernels import mask_rans
from fedmrn_app.kernels.mask_rans import GRAIN, STEPS, Evidence
from fedmrn_app.kernels.softsign import fill_softsign
from fedmrn_app.layout import Float32Array, Layout, Runs, blocks

T = TypeVar("T", bound=np.generic)
Values = Callable[[int, slice], Float32Array]
Piece = tuple[slice, Evidence, NDArray[np.uint8]]  # runs of a part, their side information and bits as they are coded

_MIN_SAMPLE, _SAMPLE_RATIO = 1 << 13, 64  # coefficients are fitted to 1/64 of a part's bits, at least 8,192
_SMALL = 0.25  # mean size of set bits below which sizes are curved
_PIECE = 1 << 17  # elements that are decoded at a time; with fewer, threads wait for the interpreter
_MIN_CUT_SIZE, _MIN_CUT_RUN = 1 << 14, 8  # smaller tensors, and tensors of shorter runs, are coded in one part


@dataclass(frozen=True, kw_only=True)
class Part:
    """Elements `first` to `last` of each run of one tensor; a run is contiguous in memory.

    Attributes:
        tensor: number of the tensor.
        start: where the tensor starts in the flat vector.
        runs: number of runs of the tensor.
        runs_per_row: number of runs of one output channel.
        run: number of elements of a run.
        first: first element of each run that belongs to the part.
        last: the element after the last one.
    """

    tensor: int
    start: int
    runs: int
    runs_per_row: int
    run: int
    first: int
    last: int

    def view(self, vector: NDArray[T]) -> NDArray[T]:
        """Return the part's elements of `vector` (d,), shape (runs, last - first); no copy."""
        return self.elements(slice(None)).of(vector[self.start : self.start + self.runs * self.run])

    def elements(self, runs: slice) -> Runs:
        """Return the part's elements of some runs of its tensor."""
        return Runs(self.run, runs, slice(self.first, self.last))

    def pieces(self) -> Iterator[slice]:
        """Yield the runs in pieces, to bound the memory of side information; in eights, as the coder has lanes."""
        step = max(8, _PIECE // (self.last - self.first) // 8 * 8)
        for start in range(0, self.runs, step):
            yield slice(start, min(start + step, self.runs))

    def coefficient_count(self, has_drift: bool) -> int:
        """Return the number of coefficients of the part, the curvature among them."""
        return 4 + 2 * (has_drift + 2 * (self.first > 0))


def all_parts(layout: Layout) -> Iterator[Part]:
    """Yield the parts in the order in which they are coded; a tensor without elements has none."""
    for phase in range(3):
        for tensor, (size, start) in enumerate(zip(layout.sizes, layout.offsets, strict=True)):
            run, runs_per_row = layout.runs(tensor)
            cut = size >= _MIN_CUT_SIZE and run >= _MIN_CUT_RUN
            cuts = (0, run // 8, run // 2, run) if cut else (0, run, run, run)
            first, last = cuts[phase : phase + 2]
            if size and first < last:
                yield Part(
                    tensor=tensor,
                    start=start,
                    runs=size // run,
                    runs_per_row=runs_per_row,
                    run=run,
                    first=first,
                    last=last,
                )


class SideInfoSource(Protocol):
    """A source of side information about the bits of all tensors, which is read block by block."""

    @property
    def layout(self) -> Layout:
        """The layout of the tensors, d elements in all."""

    @property
    def has_drift(self) -> bool:
        """Whether blocks have a drift."""

    def read(self, part: Part, runs: slice) -> Evidence:
        """Return the side information of some runs of a part; the caller does not change it."""


@dataclass(frozen=True)
class SideInformation:
    """Side information as whole vectors.

    Attributes:
        layout: of the tensors.
        size: float32 (d,) in [0, 1].
        sign: float32 (d,) of -1 and 1, the direction in which a set bit moves its weight; None if always the same.
        drift: float32 (d,) in [-1, 1], the direction in which the weight is expected to move, times the sign; None if
            it is unknown.
        inverted: bool (d,), the bits that are inverted before they are coded; the other fields refer to inverted bits.
    """

    layout: Layout
    size: Float32Array
    sign: Float32Array | None = None
    drift: Float32Array | None = None
    inverted: NDArray[np.bool_] | None = None

    @property
    def has_drift(self) -> bool:
        """Whether blocks have a drift."""
        return self.drift is not None

    def read(self, part: Part, runs: slice) -> Evidence:
        """Return the side information of some runs of a part."""

        def block(vector: NDArray[T]) -> NDArray[T]:
            return np.ascontiguousarray(part.view(vector)[runs])

        sign, drift = (None if vector is None else block(vector) for vector in (self.sign, self.drift))
        return Evidence(block(self.size), sign, drift, None if self.inverted is None else block(self.inverted))


@dataclass(frozen=True)
class Motion:
    """Side information of bits that are set where a weight moves far: how far it has moved so far.

    Attributes:
        layout: of the tensors.
        moved: returns how far some runs of a part have moved, float32 (runs, width) in [-1, 1]; magnitudes count.
        has_drift: always false here.
    """

    layout: Layout
    moved: Callable[[Part, slice], Float32Array]
    has_drift: bool = False

    def read(self, part: Part, runs: slice) -> Evidence:
        """Return the side information of some runs of a part."""
        return Evidence(np.abs(self.moved(part, runs), order="C"), None, None, None)


class BitPredictor:
    """The probabilities of a mask's bits, part by part in the order of `all_parts`.

    Sender and receiver call `begin` for each part, then `probabilities` and `learn` for its bits; the sender calls
    `fit` before.
    """

    def __init__(self) -> None:
        self._counts: dict[int, NDArray[np.int64]] = {}  # of set bits in each run, by tensor
        self._effects: dict[int, NDArray[np.int64]] = {}  # sums of size * sign * bit in each run, by tensor

    def begin(self, part: Part) -> None:
        """Start a part: compute the context of its runs from the earlier parts of its tensor."""
        self._part = part
        if part.first == 0:
            self._run_effect = self._row_density = np.zeros(part.runs, np.float32)
            return
        counts, effects = self._counts[part.tensor], self._effects[part.tensor]
        self._run_effect = effects.astype(np.float32) / np.float32(GRAIN * (part.first + 4))
        rows = counts.reshape(-1, part.runs_per_row).sum(1).astype(np.float32)
        density = rows / np.float32(part.first * part.runs_per_row)
        density -= np.float32(counts.sum()) / np.float32(part.first * part.runs)
        self._row_density = np.repeat(density, part.runs_per_row)

    def fit(self, pieces: Iterable[Piece]) -> NDArray[np.float16]:
        """Return the curvature and the coefficients of the part, fitted to a sample of its bits by ridge regression.

        Args:
            pieces: those of all runs of the part, in their order.
        """
        width = self._part.last - self._part.first
        count = self._part.runs * width
        step = stride(count, max(_MIN_SAMPLE, count // _SAMPLE_RATIO))
        samples = [_sample(block, bits, slice(-runs.start * width % step, None, step)) for runs, block, bits in pieces]
        is_set = np.concatenate([bits for _, bits in samples])
        size, sign, trend = _joined([one for one, _ in samples])
        typical = float(size[is_set].mean(dtype=np.float64)) if is_set.any() else 1.0
        curvature = np.float16(min(1 / (3 * typical), 1000) if 0 < typical < _SMALL else 0)
        predictors = [] if trend is None else [trend]
        if self._part.first > 0:
            run = np.arange(0, count, step) // width
            effect = self._run_effect[run]
            predictors += [effect if sign is None else effect * sign, self._row_density[run]]
        x = np.empty((3 + 2 * len(predictors), is_set.size), np.float32)
        x[0] = 1
        np.divide(size * np.float32(1 + curvature), size * np.float32(curvature) + 1, out=x[1])
        np.multiply(x[1], x[1], out=x[2])
        for number, q in enumerate(predictors):
            x[3 + 2 * number] = q
            np.multiply(q, x[1], out=x[4 + 2 * number])
        y = is_set.astype(np.float32)
        mean = y.mean()  # the constant is not shrunk
        ridge = (1e-6 * y.size + 1e-3) * np.eye(len(x))
        solution = np.linalg.solve((x @ x.T).astype(np.float64) + ridge, (x @ (y - mean)).astype(np.float64))
        solution[0] += mean
        return np.append(curvature, np.clip(solution, -60000, 60000)).astype("<f2")

    def probabilities(self, runs: slice, block: Evidence, fitted: NDArray[np.float16]) -> NDArray[np.uint16]:
        """Return P(bit = 1) of some runs of the part in steps of 2^-12, uint16 (runs * width,).

        Args:
            runs: which runs.
            block: their side information.
            fitted: what `fit` returned.
        """
        c = np.zeros(9, np.float32)
        c[:3] = fitted[1:4]
        context = 5 if block.trend is None else 3  # the place of the first predictor's coefficients
        c[context : context + fitted.size - 4] = fitted[4:]
        effect, density = self._run_effect[runs], self._row_density[runs]
        return mask_rans.find_shares(block, c * np.float32(STEPS), np.float32(fitted[0]), effect, density)

    def learn(self, runs: slice, block: Evidence, bits: NDArray[np.uint8]) -> None:
        """Take the bits of some runs of the part, as they are coded, into the context of later parts."""
        part = self._part
        if part.last == part.run:
            return  # no later part of this tensor
        counts, effects = mask_rans.count_runs(block, bits)
        for sums, found in ((self._counts, counts), (self._effects, effects)):
            sums.setdefault(part.tensor, np.zeros(part.runs, np.int64))[runs] += found


def _sample(block: Evidence, bits: NDArray[np.uint8], places: slice) -> tuple[Evidence, NDArray[np.bool_]]:
    """Return copies of some elements of a piece: sizes, signs and trends, float32 (n,), and bits, bool (n,)."""

    def chosen(values: NDArray[T]) -> NDArray[T]:
        return values.reshape(-1)[places].copy()  # a view would hold the whole piece

    sign, trend = (None if values is None else chosen(values) for values in (block.sign, block.trend))
    return Evidence(chosen(block.size), sign, trend), chosen(bits).view(np.bool_)


def _joined(samples: Sequence[Evidence]) -> tuple[Float32Array, Float32Array | None, Float32Array | None]:
    """Return the sizes, signs and trends of samples one after the other; None for what they lack."""
    signs = [one.sign for one in samples if one.sign is not None]
    trends = [one.trend for one in samples if one.trend is not None]
    size = np.concatenate([one.size for one in samples])
    return size, np.concatenate(signs) if signs else None, np.concatenate(trends) if trends else None


def stride(count: int, wanted: int) -> int:
    """Return a step through `count` elements that meets at least `wanted`; it is odd, so that it meets all channels."""
    return max(1, count // wanted - 1) | 1


def softsign(layout: Layout, values: Values) -> Float32Array:
    """Return x / (|x| + s) in [-1, 1] of a vector, float32 (d,).

    s is three times the median |x| of a sample of the nonzero elements of each tensor, so that the result does not
    depend on the scale of x.

    Args:
        layout: of the tensors.
        values: returns the elements x of a part of a tensor, which is given by its number, float32 (k,).
    """
    found = np.empty(layout.count, np.float32)
    for place, x, scale in scaled_parts(layout, values):
        fill_softsign(x, scale, found[place])
    return found


def scaled_parts(layout: Layout, values: Values) -> Iterator[tuple[slice, Float32Array, np.float32]]:
    """Yield the place of each part of a vector, its elements x and the scale s of `softsign`."""
    for tensor, whole in enumerate(layout.slices):
        count = whole.stop - whole.start
        scale = softsign_scale(values, tensor, count)
        for part in blocks(count):
            x = np.ascontiguousarray(values(tensor, part), np.float32)
            yield slice(whole.start + part.start, whole.start + part.stop), x, scale


def softsign_scale(values: Values, tensor: int, count: int) -> np.float32:
    """Return the scale s of `softsign` of a tensor of `count` elements."""
    sizes = np.abs(values(tensor, slice(None, None, stride(count, 4096))))
    sizes = np.sort(sizes[sizes > 0])
    return np.float32(3) * sizes[sizes.size // 2] if sizes.size else np.float32(1)
