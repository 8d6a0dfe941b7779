"""An estimate of the update that a mask was drawn from, with which the receiver predicts the bits of the mask.

    update u  --->  estimate e: a matrix of low rank for each tensor, quantized  --->  sent beside the mask
       |                  |
       v                  v
    mask: u > threshold?  distance of the threshold from e  --->  P(bit = 1), see `wire/mask_model.py`

A bit says on which side of a threshold, known to both, the update lies. Where the estimate is far from the threshold
the bit is nearly certain. Local training changes a layer in few directions, so that a coarse estimate takes a few
hundredths of a bit per weight, and saves more than that in the mask. The mask is the same with and without an
estimate, and the server adds nothing but the mask times the noise.

A finer step makes the estimate longer and the mask shorter. The mask takes bits in proportion to the estimate's error
over the scale of the noise, so that both together are shortest if the step of a tensor is in proportion to the
geometric mean of the sizes of its update and of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from fedmrn_app.errors import PayloadError
from fedmrn_app.kernels.blas import one_blas_thread
from fedmrn_app.kernels.outer_products import product
from fedmrn_app.layout import Float32Array, Layout, Shape
from fedmrn_app.methods.quantization import (
    PRICE,
    LevelPart,
    Offsets,
    Ranks,
    left_layout,
    root_mean_square,
    split_left,
    unknown_trends,
    values_of,
)
from fedmrn_app.noise import Noise
from fedmrn_app.wire import mask_model
from fedmrn_app.wire.adaptive_levels import CodedLevels, Levels, encode_levels, level_body, read_levels
from fedmrn_app.wire.body import Body, Coder
from fedmrn_app.wire.factors import Spectrum, fit, inverse_norms, largest_rank, matrix_shape, spectrum
from fedmrn_app.wire.primitives import wrong_length

_OFFSETS: Final = 6  # bytes of centroids, three of the left and three of the right vectors
_STEP = 2.4  # times the geometric mean of the update's and the noise's root mean square; chosen on kept updates
_SHARE = 4  # a matrix has at least this many elements for each one of its factors, which bounds a decoder's memory
_LARGEST = np.float32(1e20)  # of the sizes of right vectors, so that no sum of products is infinite


@dataclass(frozen=True)
class Estimate:
    """An estimated update.

    Attributes:
        factors: left vectors, float32 (r, n), and right vectors, float32 (r, m), of each tensor; None for zeros.
    """

    factors: tuple[tuple[Float32Array, Float32Array] | None, ...]

    def rows(self, part: mask_model.Part, runs: slice) -> Float32Array:
        """Return the estimate of some runs of a part, float32 (runs, width)."""
        width = part.last - part.first
        pair = self.factors[part.tensor]
        if pair is None:
            return np.zeros((runs.stop - runs.start, width), np.float32)
        left, right = pair
        first, last = runs.start // part.runs_per_row, -(-runs.stop // part.runs_per_row)
        columns = right.reshape(len(right), part.runs_per_row, part.run)[:, :, part.first : part.last]
        found = product(left[:, first:last], columns.reshape(len(right), -1))
        start = runs.start - first * part.runs_per_row
        return found.reshape(-1, width)[start : start + runs.stop - runs.start]


@dataclass(frozen=True)
class QuantizedEstimate:
    """An estimate as it is sent.

    Bytes: a rank per tensor, one byte each; the steps (float32); the centroids (int8); the form of the levels, one
    byte; the levels.

    Attributes:
        layout: layout of the tensors.
        ranks: number of factors of each tensor.
        steps: step of each tensor that has factors, float32.
        offsets: centroids of the left vectors, then of the right ones, int8 (6,); see `quantization.LevelPart`.
        levels: of all left vectors, then of all right ones.
    """

    layout: Layout
    ranks: Ranks
    steps: Float32Array
    offsets: Offsets
    levels: Levels

    @classmethod
    def of(cls, u: Float32Array, layout: Layout, noise: Noise) -> Self | None:
        """Return an estimate of an update, or None if no tensor has one that is worth its bytes.

        Args:
            u: the update, float32 (d,).
            layout: layout of the tensors.
            noise: the noise of the mask.
        """
        if not np.isfinite(u).all():
            return None
        with one_blas_thread():
            tensors = [
                _Tensor.of(part, shape, noise) for part, shape in zip(layout.split(u), layout.shapes, strict=True)
            ]
            chosen = [tensor for tensor in tensors if tensor.rank > 0]
            if not chosen:
                return None
            ranks = tuple(tensor.rank for tensor in tensors)
            left = _quantized([tensor.left() for tensor in chosen], left_layout(layout, ranks))
            lefts = [vectors for vectors in split_left(left.values, layout, ranks) if vectors is not None]
            fitted = [tensor.right(vectors) for tensor, vectors in zip(chosen, lefts, strict=True)]
            right = _quantized(fitted, _right_layout(layout, ranks))
        return cls(
            layout=layout,
            ranks=ranks,
            steps=np.array([tensor.step for tensor in chosen], np.float32),
            offsets=np.concatenate([left.offsets, right.offsets]),
            levels=np.concatenate([left.coded.levels, right.coded.levels]),
        )

    def to_bytes(self, coder: Coder) -> bytes:
        """Return the bytes."""
        both = _both(self.layout, self.ranks)
        body = level_body(CodedLevels(self.levels, encode_levels(self.levels, both, unknown_trends(both))), coder)
        steps = self.steps.astype("<f4").tobytes()
        return bytes(self.ranks) + steps + self.offsets.tobytes() + bytes([body.form]) + body.data

    @classmethod
    def from_bytes(cls, data: memoryview, layout: Layout) -> Self:
        """Return the estimate of `to_bytes`.

        Raises:
            PayloadError: `to_bytes` returns no such bytes for such a model.
        """
        tensors = len(layout.shapes)
        ranks = tuple(data[:tensors])
        most = [_largest_rank(shape) for shape in layout.shapes]
        if len(ranks) < tensors or not any(ranks) or any(rank > top for rank, top in zip(ranks, most, strict=True)):
            raise PayloadError("estimate has more factors than a tensor can have, or none at all", code="levels-ranks")
        count = sum(rank > 0 for rank in ranks)
        start = tensors + 4 * count
        head = start + _OFFSETS + 1
        if len(data) < head:
            raise wrong_length("estimate", data, f"less than its head of {head}")
        steps = np.frombuffer(data, "<f4", count, tensors).astype(np.float32)
        if not (np.isfinite(steps) & (steps >= 0)).all():
            raise PayloadError("estimate has a step that is negative or not finite", code="not-finite")
        both = _both(layout, ranks)
        levels = read_levels(Body(data[head:], data[head - 1]), both, unknown_trends(both))
        return cls(layout, ranks, steps, np.frombuffer(data, np.int8, _OFFSETS, start), levels)

    def estimate(self, scale: np.float32) -> Estimate:
        """Return the estimate times a scale. Vectors are limited to sizes that an update can have."""
        count = left_layout(self.layout, self.ranks).count
        left = values_of(self.levels[:count], self.offsets[:3])
        right = values_of(self.levels[count:], self.offsets[3:])
        rights, steps = iter(_right_layout(self.layout, self.ranks).split(right)), iter(self.steps)
        factors: list[tuple[Float32Array, Float32Array] | None] = []
        for vectors in split_left(left, self.layout, self.ranks):
            if vectors is None:
                factors.append(None)
                continue
            with np.errstate(over="ignore"):
                sizes = np.minimum(inverse_norms(vectors) * next(steps) * scale, _LARGEST)
            factors.append((vectors, next(rights).reshape(len(vectors), -1) * sizes[:, None]))
        return Estimate(tuple(factors))


@dataclass(frozen=True)
class _Tensor:
    """The update of one tensor, for its estimate.

    Attributes:
        step: of the quantizer.
        rank: number of factors; 0 for none.
        spectrum: of the update in steps; None without factors.
    """

    step: float
    rank: int = 0
    spectrum: Spectrum | None = None

    @classmethod
    def of(cls, u: Float32Array, shape: Shape, noise: Noise) -> Self:
        reach = noise.largest * noise.alpha  # bits do not depend on how far beyond it an update is
        clipped = np.clip(u, -reach, reach)
        step, most = _STEP * math.sqrt(root_mean_square(clipped) * noise.rms), _largest_rank(shape)
        if most == 0 or not step > 0:
            return cls(step)
        found = spectrum(clipped.reshape(matrix_shape(shape)) / np.float32(step))
        return cls(step) if found is None else cls(step, min(found.rank(1.0, PRICE), most), found)

    def left(self) -> Float32Array:
        assert self.spectrum is not None
        return self.spectrum.scaled_left(self.rank)

    def right(self, left: Float32Array) -> Float32Array:
        assert self.spectrum is not None
        return fit(self.spectrum.matrix, left)[0]


def _quantized(vectors: Sequence[Float32Array], layout: Layout) -> LevelPart:
    return LevelPart.of(np.concatenate([part.reshape(-1) for part in vectors]), 1.0, layout, unknown_trends(layout))


def _largest_rank(shape: Shape) -> int:
    return largest_rank(matrix_shape(shape)) // _SHARE


def _right_layout(layout: Layout, ranks: Ranks) -> Layout:
    return Layout(tuple((rank, *shape[1:]) for rank, shape in zip(ranks, layout.shapes, strict=True) if rank))


def _both(layout: Layout, ranks: Ranks) -> Layout:
    """Return the layout of all left vectors, then all right ones."""
    return Layout(left_layout(layout, ranks).shapes + _right_layout(layout, ranks).shapes)
