"""What a body of levels holds, and its contribution to a mean, whose values are made where they are added.

Levels take half of the memory of values, and factors nearly none. Either way the values are the same to the bit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.kernels.level_tables import MAX_LEVEL
from fedmrn_app.kernels.outer_products import product
from fedmrn_app.layout import BLOCK, Float32Array, Layout, blocks
from fedmrn_app.methods.contribution import Contribution
from fedmrn_app.methods.quantization import (
    Offsets,
    Ranks,
    TensorSteps,
    centroids,
    element_layout,
    rebuilt,
    split_left,
    values_of,
)  # fmt: skip
from fedmrn_app.wire.adaptive_levels import Levels
from fedmrn_app.wire.factors import inverse_norms
from fedmrn_app.wire.primitives import all_finite

_MOST = 0.99 * float(np.finfo(np.float32).max)
_PART = 4 * BLOCK  # weights whose values exist at a time; rows of a matrix that it cuts are computed twice


@dataclass(frozen=True)
class LevelContent:
    """The checked content of a body of levels.

    Attributes:
        levels: of the elements of tensors, or of the right vectors where a tensor has factors, int16.
        offsets: their centroids, int8 (3,).
        steps: of the tensors.
        scale: `Quantization.scale`.
        ranks: number of factors of each tensor; none where no tensor has any.
        left: values of the left vectors, float32; None where no tensor has factors.
    """

    levels: Levels
    offsets: Offsets
    steps: TensorSteps
    scale: float
    ranks: Ranks = ()
    left: Float32Array | None = None

    def update(self, layout: Layout) -> Float32Array:
        """Return all values, float32 (d,).

        Raises:
            PayloadError: they are not finite.
        """
        update = values_of(self.levels, self.offsets)
        if self.left is None:
            places = np.flatnonzero(self.levels)
            update[places] = update[places] * self.steps.at(places) * np.float32(self.scale)
            return update
        update = rebuilt(update, self.left, layout, self.ranks, self.steps, self.scale)
        if not all_finite(update):
            raise PayloadError(f"body has the scale {self.scale}", code="not-finite", value=self.scale)
        return update

    def contribution(self, layout: Layout) -> LevelContribution | None:
        """Return the contribution of the same values; None where they may not be finite."""
        ranks = self.ranks or (0,) * len(layout.shapes)
        no_left: Sequence[None] = [None] * len(ranks)
        lefts = no_left if self.left is None else split_left(self.left, layout, ranks)
        parts = element_layout(layout, ranks).split(self.levels)
        tensors: list[LevelTensor | FactoredTensor] = []
        for part, left, share in zip(parts, lefts, self.steps.each(ranks), strict=True):
            scales = share, self.scale
            if left is None:
                tensors.append(LevelTensor(part, self.offsets, scales))
                continue
            right = values_of(part, self.offsets).reshape(len(left), -1) * inverse_norms(left)[:, None]
            tensors.append(FactoredTensor(np.ascontiguousarray(left.T), right, scales))
        finite = all(tensor.largest < _MOST for tensor in tensors)
        return LevelContribution(layout.offsets, tensors) if finite else None


@dataclass(frozen=True)
class LevelContribution(Contribution):
    """Tensors in the order of their weights.

    Attributes:
        starts: the first weight of each tensor.
        tensors: what their values are made of.
    """

    starts: Sequence[int]
    tensors: Sequence[LevelTensor | FactoredTensor]

    def add_to(self, total: Float32Array, weight: np.float32, first: int = 0) -> None:
        """Add a piece of the values."""
        values = np.empty(min(_PART, total.size), np.float32)
        for part in blocks(total.size, _PART):
            out = values[: part.stop - part.start]
            self._fill(out, first + part.start)
            out *= weight
            total[part] += out

    def _fill(self, out: Float32Array, first: int) -> None:
        tensor, done = bisect_right(self.starts, first) - 1, 0
        while done < out.size:
            place = first + done - self.starts[tensor]
            done += self.tensors[tensor].fill(out[done:], place)
            tensor += 1


@dataclass(frozen=True)
class LevelTensor:
    """A tensor of n levels at their centroids.

    Attributes:
        levels: int16 (n,).
        offsets: of the centroids.
        scales: what the values are multiplied by, one after the other.
    """

    levels: Levels
    offsets: Offsets
    scales: tuple[float, float]

    def fill(self, out: Float32Array, first: int) -> int:
        """Write the values from `first` on to the start of `out`, and return their number."""
        levels = self.levels[first : first + out.size]
        places = np.flatnonzero(levels)
        values = centroids(levels[places], self.offsets)
        for scale in self.scales:
            values *= np.float32(scale)
        out[: levels.size] = 0
        out[places] = values
        return levels.size

    @property
    def largest(self) -> float:
        """A bound on the magnitude of the values."""
        return (MAX_LEVEL + 1) * max(self.scales)


@dataclass(frozen=True)
class FactoredTensor:
    """A matrix (n, m) that is the sum of r outer products.

    Attributes:
        left: float32 (n, r), contiguous.
        right: float32 (r, m).
        scales: what the sum is multiplied by, one after the other.
    """

    left: Float32Array
    right: Float32Array
    scales: tuple[float, float]

    def fill(self, out: Float32Array, first: int) -> int:
        """Write the values from `first` on to the start of `out`, and return their number."""
        width = self.right.shape[1]
        count = int(min(out.size, self.left.shape[0] * width - first))
        rows = slice(first // width, -(-(first + count) // width))
        before = first - rows.start * width
        out[:count] = product(self.left[rows].T, self.right, scales=self.scales).reshape(-1)[before : before + count]
        return count

    @property
    def largest(self) -> float:
        """A bound on the magnitude of the sums before and after they are multiplied."""
        bound = _largest(self.left, 0) @ _largest(self.right, 1)
        return float(bound) * max(1.0, *self.scales, self.scales[0] * self.scales[1])


def _largest(values: Float32Array, axis: int) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.abs(values).max(axis=axis, initial=0).astype(np.float64)
    return found
