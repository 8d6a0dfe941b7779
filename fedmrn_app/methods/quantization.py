"""An update quantized with one step, as levels of its elements or of the factors of its matrices."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.kernels.level_tables import MAX_LEVEL
from fedmrn_app.kernels.outer_products import product
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.wire.adaptive_levels import CodedLevels, Levels, Trends, quantize
from fedmrn_app.wire.factors import (
    expected_bits,
    expected_loss,
    fit,
    inverse_norms,
    matrix_shape,
    spectrum,
    unit_vectors,
)
from fedmrn_app.wire.sums import inner_product, square_sum

Exponents = NDArray[np.int8]
Offsets = NDArray[np.int8]
Ranks = tuple[int, ...]
LengthScale = Literal["auto", "unbiased", "least_mse"]
ONE_STEP: Exponents = np.zeros(0, np.int8)

PRICE = 0.11  # of a bit, as a share of the squared step: of 0.08 to 0.16 the one with the fewest bits at an error
OFFSETS: Final = struct.Struct("<bbb")  # centroids, see `LevelPart`
LEFT: Final = struct.Struct("<BBbbbI")  # forms of both parts; centroids and number of bytes of the left vectors
_GRAIN = 256
HALF_LENGTH, SHORTEST = 3.2, 0.5  # of the length of updates, see docs/methods.md
_QUARTERS = tuple(2 ** (quarter / 4) for quarter in range(4))


@dataclass(frozen=True)
class LevelPart:
    """Levels that are coded together.

    Attributes:
        coded: the levels.
        offsets: centroids of levels 1, 2 and others less the level, int8 (3,), in steps of 1/256.
    """

    coded: CodedLevels
    offsets: Offsets

    @classmethod
    def of(cls, x: Float32Array, step: float, layout: Layout, trends: Trends) -> LevelPart:
        """Return a vector quantized with a dead zone, which minimizes squared error plus `PRICE` per bit."""
        coded = quantize(x, step, layout, trends, PRICE)
        places = np.flatnonzero(coded.levels)
        sizes = np.abs(coded.levels[places])
        excess = np.abs(x[places]) / np.float32(step) - sizes
        offsets = np.zeros(3, np.int8)
        for number, chosen in enumerate((sizes == 1, sizes == 2, sizes > 2)):
            if chosen.any():
                offsets[number] = np.clip(np.rint(_GRAIN * excess[chosen].mean(dtype=np.float64)), -127, 127)
        return cls(coded, offsets)

    @property
    def values(self) -> Float32Array:
        """The levels at their centroids, in steps, float32 (d,)."""
        return values_of(self.coded.levels, self.offsets)


@dataclass(frozen=True)
class Quantization:
    """An update quantized with some step.

    Attributes:
        step: step of the quantizer.
        scale: size of a step, times the factor that makes the length the wanted one.
        error: squared error at the best length, as a share of the squared norm.
        elements: levels of the elements of tensors, or of the right vectors where a tensor has factors.
        ranks: the number of factors of each tensor; none where no tensor has any.
        left: levels of the left vectors; None where no tensor has factors.
        rest: squared error that factors of these numbers leave with any step, as a share of the squared norm.
    """

    step: float
    scale: float
    error: float
    elements: LevelPart
    ranks: Ranks = ()
    left: LevelPart | None = None
    rest: float = 0.0

    @property
    def size(self) -> int:
        """The number of bytes of levels, centroids and ranks."""
        size = OFFSETS.size + len(self.elements.coded.data)
        return size if self.left is None else size + len(self.ranks) + LEFT.size + len(self.left.coded.data)

    @property
    def sent(self) -> int:
        """The same with levels in the shorter of their forms."""
        parts = [self.elements] if self.left is None else [self.elements, self.left]
        return self.size - sum(len(part.coded.data) - part.coded.shortest for part in parts)


class UpdateQuantizer:
    """Quantizes one update with any step.

    A matrix is sent as products of two vectors where that costs less, see `wire/factors.py`. The left vectors are
    quantized first; the right ones then fit what the left ones have become.
    """

    def __init__(
        self,
        x: Float32Array,
        layout: Layout,
        trends: Trends,
        *,
        steps: TensorSteps,
        low_rank: bool,
        scale: LengthScale,
        half_length: float = HALF_LENGTH,
    ) -> None:
        """Prepare an update.

        Args:
            x: the update, float32 (d,).
            layout: layout of the tensors.
            trends: see `trends_of`.
            steps: of the tensors.
            low_rank: whether matrices may have factors.
            scale: whether the length is right along the update, or that of the least squared error; `auto` for one
                between them, see `part_of_length`.
            half_length: ratio of noise to signal from which on `auto` is half of the length.
        """
        self._x, self.layout, self._trends, self._steps, self._scale = x, layout, trends, steps, scale
        self._half_length = half_length
        self._square = square_sum(x)
        self._ranks: dict[float, Ranks] = {}  # by the step
        self.even = steps.divided(x)
        parts = zip(layout.split(self.even), layout.shapes, strict=True)
        self._spectra = [spectrum(part.reshape(matrix_shape(shape))) if low_rank else None for part, shape in parts]

    @property
    def may_factor(self) -> bool:
        """Whether any tensor can have factors."""
        return any(found is not None for found in self._spectra)

    def zeros(self, scale: float) -> Quantization:
        """Return levels of zero with a scale."""
        coded = quantize(np.zeros_like(self._x), 1.0, self.layout, self._trends, PRICE)
        return Quantization(1.0, scale, 0.0, LevelPart(coded, np.zeros(3, np.int8)))

    def ranks(self, step: float) -> Ranks:
        """Return how many factors of each tensor are worth sending."""
        if step not in self._ranks:
            self._ranks[step] = tuple(0 if found is None else found.rank(step, PRICE) for found in self._spectra)
        return self._ranks[step]

    def expected_size(self, step: float, ranks: Ranks | None = None) -> float:
        """Return about the size of what `at` returns, in bytes; the ratio of the two hardly changes with the step."""
        ranks = self.ranks(step) if ranks is None else ranks
        parts = zip(self._spectra, ranks, self.layout.split(self.even), self.layout.shapes, strict=True)
        bits = (
            expected_bits(x.reshape(matrix_shape(shape)), step) if found is None else found.expected_bits(step, rank)
            for found, rank, x, shape in parts
            if x.size
        )
        return OFFSETS.size + sum(bits) / 8 + (len(ranks) + LEFT.size if any(ranks) else 0)

    @property
    def norm(self) -> float:
        """The norm of the update whose tensors are divided by their steps."""
        return math.sqrt(square_sum(self.even))

    def expected_error(self, step: float) -> float:
        """Return about the squared error of what `at` returns, as a share of the squared norm."""
        ranks = self.ranks(step)
        parts = zip(self._steps.each(ranks), self._spectra, ranks, self.layout.split(self.even), strict=True)
        lost = (
            share**2 * (expected_loss(x.reshape(1, -1), step) if found is None else found.expected_loss(step, rank))
            for share, found, rank, x in parts
            if x.size
        )
        return sum(lost) / self._square

    def finest(self, ranks: Ranks) -> float:
        """Return the smallest step at which no level of these factors, or of elements, is beyond the largest one."""
        largest = [
            max(float(x.max(initial=0)), -float(x.min(initial=0))) if found is None or not rank else found.largest(rank)
            for found, rank, x in zip(self._spectra, ranks, self.layout.split(self.even), strict=True)
        ]
        return max(largest, default=0.0) / MAX_LEVEL

    def _rest(self, ranks: Ranks) -> float:
        """Return `Quantization.rest`."""
        parts = zip(self._steps.each(ranks), self._spectra, ranks, strict=True)
        lost = (share**2 * found.rest(rank) for share, found, rank in parts if found is not None and rank)
        return sum(lost) / self._square

    def at(self, step: float, ranks: Ranks | None = None) -> Quantization:
        """Return the update quantized with a step; with the factors that are worth sending, unless `ranks` says."""
        ranks = self.ranks(step) if ranks is None else ranks
        return self._factored(step, ranks) if any(ranks) else self._plain(step)

    def _plain(self, step: float) -> Quantization:
        part = LevelPart.of(self.even, step, self.layout, self._trends)
        levels = part.coded.levels
        places = np.flatnonzero(levels)
        q = centroids(levels[places], part.offsets) * self._steps.at(places)
        along = float(np.multiply(self._x[places], q, dtype=np.float64).sum())
        return self._scaled(step, along, float(np.square(q, dtype=np.float64).sum()), part)

    def _factored(self, step: float, ranks: Ranks) -> Quantization:
        of_left = left_layout(self.layout, ranks)
        left = LevelPart.of(self._left(ranks), step, of_left, unknown_trends(of_left))
        elements: list[Float32Array] = []
        seen: list[Float32Array] = []
        lefts = split_left(left.values, self.layout, ranks)
        for found, vectors, x in zip(self._spectra, lefts, self.layout.split(self.even), strict=True):
            pair = (x, x) if found is None or vectors is None else fit(found.matrix, vectors)
            elements.append(pair[0].reshape(-1))
            seen.append(pair[1].reshape(-1))
        layout = element_layout(self.layout, ranks)
        part = LevelPart.of(np.concatenate(elements), step, layout, element_trends(self.layout, ranks, self._trends))
        along = norm = 0.0
        for share, vectors, x, q in zip(self._steps.each(ranks), lefts, seen, layout.split(part.values), strict=True):
            along += share**2 * inner_product(x, q)
            norm += share**2 * _squared_norm(vectors, q)
        return self._scaled(step, along, norm, part, ranks, left)

    def _left(self, ranks: Ranks) -> Float32Array:
        vectors = [
            found.scaled_left(rank).reshape(-1)
            for found, rank in zip(self._spectra, ranks, strict=True)
            if found is not None and rank
        ]
        return np.concatenate(vectors)

    def _scaled(
        self,
        step: float,
        along: float,
        norm: float,
        elements: LevelPart,
        ranks: Ranks = (),
        left: LevelPart | None = None,
    ) -> Quantization:
        """Return the result, from the product of the update with its levels and the squared norm of these."""
        if not along > 0:
            return Quantization(step, 0.0, 1.0, elements, ranks, left)
        error = 1 - along**2 / (self._square * norm)
        unbiased, shorter = self._square / along, along / norm
        scale = {
            "unbiased": unbiased,
            "least_mse": shorter,
            "auto": part_of_length(error, self._half_length) * unbiased,
        }
        return Quantization(step, scale[self._scale], error, elements, ranks, left, self._rest(ranks) if ranks else 0.0)


def part_of_length(error: float, half_length: float) -> float:
    """Return the part of the length along the update that an update with an error is sent at, at least `SHORTEST`.

    The ratio of noise to signal is error / (1 - error) at any length. The noise of several replies averages out and
    later rounds correct it, but what is shrunk is missing in all replies; so the length is that of the least error,
    1 - error, for a ratio of noise to signal that is divided by `half_length`. With much less than half of its length
    training nearly comes to a halt, however noisy the updates are.

    Args:
        error: squared error at the best length, as a share of the squared norm.
        half_length: ratio of noise to signal at which the part is a half; 1 for the least squared error of one update.
    """
    return max(SHORTEST, half_length * (1 - error) / (half_length * (1 - error) + error))


def rebuilt(
    elements: Float32Array, left: Float32Array, layout: Layout, ranks: Ranks, steps: TensorSteps, scale: float
) -> Float32Array:
    """Return the vector of levels at their centroids, float32 (d,); the inverse of `UpdateQuantizer`.

    Its elements may not be finite.

    Args:
        elements: values of the elements and of the right vectors, in the order of the tensors.
        left: values of the left vectors.
        layout: layout of the tensors.
        ranks: number of factors of each tensor.
        steps: of the tensors.
        scale: `Quantization.scale`.
    """
    found = np.empty(layout.count, np.float32)
    parts = element_layout(layout, ranks).split(elements)
    for out, share, vectors, part in zip(
        layout.split(found), steps.each(ranks), split_left(left, layout, ranks), parts, strict=True
    ):
        if vectors is None:
            with np.errstate(over="ignore"):
                np.multiply(part, np.float32(share), out=out)
                out *= np.float32(scale)
        else:
            right = part.reshape(len(vectors), -1) * inverse_norms(vectors)[:, None]
            product(vectors, right, out.reshape(vectors.shape[1], -1), (share, scale))
    return found


def left_layout(layout: Layout, ranks: Ranks) -> Layout:
    """Return the layout of all left vectors."""
    return Layout(tuple((rank, shape[0]) for rank, shape in zip(ranks, layout.shapes, strict=True) if rank))


def element_layout(layout: Layout, ranks: Ranks) -> Layout:
    """Return the layout of tensors of which some have right vectors."""
    pairs = zip(ranks, layout.shapes, strict=True)
    return Layout(tuple((rank, *shape[1:]) if rank else shape for rank, shape in pairs))


def unknown_trends(layout: Layout) -> Trends:
    """Return the trends of vectors of which nothing is known, int8 (d,)."""
    return np.zeros(layout.count, np.int8)


def element_trends(layout: Layout, ranks: Ranks, trends: Trends) -> Trends:
    """Return the trends for `element_layout`, from those of all elements; right vectors have none."""
    sizes = element_layout(layout, ranks).sizes
    parts = zip(ranks, sizes, layout.split(trends), strict=True)
    return np.concatenate([np.zeros(size, np.int8) if rank else part for rank, size, part in parts])


def split_left(left: Float32Array, layout: Layout, ranks: Ranks) -> list[Float32Array | None]:
    """Return the left vectors of each tensor, float32 (r, n); None where it has no factors."""
    parts = iter(left_layout(layout, ranks).split(left))
    return [
        next(parts).reshape(rank, shape[0]) if rank else None for rank, shape in zip(ranks, layout.shapes, strict=True)
    ]


def values_of(levels: Levels, offsets: Offsets) -> Float32Array:
    """Return levels at their centroids, in steps, float32 (d,)."""
    found = np.zeros(levels.size, np.float32)
    places = np.flatnonzero(levels)
    found[places] = centroids(levels[places], offsets)
    return found


def centroids(levels: Levels, offsets: Offsets) -> Float32Array:
    """Return the values of levels that are not zero, in steps, float32 (n,)."""
    sizes = np.abs(levels)
    values: Float32Array = (sizes + offsets[np.minimum(sizes, 3) - 1] / np.float32(_GRAIN)).astype(np.float32)
    return np.copysign(values, levels, out=values, casting="same_kind")


def root_mean_square(x: Float32Array) -> float:
    """Return the root mean square of a vector, 0 for an empty one."""
    return math.sqrt(square_sum(x) / max(1, x.size))


def _squared_norm(vectors: Float32Array | None, q: Float32Array) -> float:
    """Return the squared norm of a tensor of elements, or of the products of left and right vectors."""
    if vectors is None:
        return square_sum(q)
    units, wide = unit_vectors(vectors).astype(np.float64), q.reshape(len(vectors), -1).astype(np.float64)
    return float(np.multiply(units @ units.T, wide @ wide.T).sum())


@dataclass(frozen=True)
class TensorSteps:
    """The steps of the tensors, as shares of the largest one.

    Attributes:
        shares: float32 (t,), or (1,) where all tensors have one step.
        starts: element of the vector where each tensor starts, int64 (t,).
    """

    shares: Float32Array
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, exponents: Exponents, layout: Layout) -> TensorSteps:
        """Return the steps of exponents, int8 (t,), or one step for all if there are none."""
        octaves = [divmod(int(exponent), 4) for exponent in exponents] or [(0, 0)]
        shares = [math.ldexp(_QUARTERS[quarter], octave) for octave, quarter in octaves]
        return cls(np.array(shares, np.float32), np.array(layout.offsets, np.int64))

    def each(self, ranks: Sequence[int]) -> Iterator[float]:
        """Yield the step of each of as many tensors as there are ranks."""
        shares = self.shares if len(self.shares) > 1 else np.broadcast_to(self.shares, len(ranks))
        return map(float, shares)

    def at(self, places: NDArray[np.int64]) -> Float32Array:
        """Return the steps of weights, float32 (n,), for their ascending places in the vector, int64 (n,)."""
        if len(self.shares) == 1:
            return self.shares
        return self.shares[np.searchsorted(self.starts, places, side="right") - 1]

    def divided(self, x: Float32Array) -> Float32Array:
        """Return a vector (d,) whose tensors are divided by their steps."""
        if len(self.shares) == 1:
            return x
        shares: Float32Array = np.repeat(self.shares, np.diff(self.starts, append=x.size))
        return np.divide(x, shares, out=shares)
