"""Vectors on a grid: for each element whole steps away from a reference that both sides have.

What is read is `reference + counts * step`, by operations that IEEE 754 rounds exactly, so both sides have the same
bits. A grid does not depend on how it travels, see `wire/lattice_code.py`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array, slices

FAR = (1 << 30) - 1  # steps; nothing that is finite and trained comes near, and differences of two fit into an int32
_TINY = np.finfo(np.float32).tiny
_MOST = 2  # with 4 a model that is trained further loses points, with 2 it does as well as in float32
_KEPT = ("int8", "int16", "int32")  # how counts are kept


@dataclass(frozen=True)
class LatticeRule:
    """How a grid is laid.

    What rounding does to a layer's output goes with its step, however many weights it has, and what a step saves goes
    with their number. At a given sum of squared steps the fewest bits are taken where steps go with the root of it.

    Attributes:
        sizes: the elements of each of T tensors, n in all.
        masked: the first so many tensors have a step that follows from the reference, the others from the differences.
        step: of those, for one of mean size, in root mean squares of the reference; of the differences where the
            reference is all zero. It is halved until it is at most `_MOST` root mean squares of the differences, for
            a model that was trained before moves little.
        fine: of the others, in root mean squares of the differences.
    """

    sizes: Sequence[int]
    masked: int
    step: float
    fine: float

    def step_of(self, tensor: int, reference: Float32Array, moved: NDArray[np.float64]) -> np.float32:
        """The step of one tensor; it changes by powers of two, and rarely."""
        size = _root_mean_square(moved)
        share = self.fine
        if tensor < self.masked:
            share = self.step * math.sqrt(self.sizes[tensor] * self.masked / max(1, sum(self.sizes[: self.masked])))
            full = _root_mean_square(reference.astype(np.float64)) * share
            if full >= _TINY:
                return np.float32(max(_halved(full, _MOST * size), float(_TINY)))
        if not size * share > 0:
            return np.float32(1)
        _, exponent = np.frexp(size * share)
        return np.float32(max(2.0 ** (int(exponent) - 1), float(_TINY)))


@dataclass(frozen=True, eq=False)
class Lattice:
    """A vector on a grid.

    Attributes:
        steps: float32 (T,), finite and above 0, of each tensor.
        counts: int32 (n,), how many of them each element is from the reference.
    """

    steps: Float32Array
    counts: NDArray[np.int32]

    @classmethod
    def rounded(cls, vector: Float32Array, reference: Float32Array, rule: LatticeRule) -> Lattice:
        """Round a vector to the nearest grid points.

        Args:
            vector: float32 (n,), finite.
            reference: float32 (n,), what both sides have.
            rule: how the grid is laid.
        """
        steps, counts = np.empty(len(rule.sizes), np.float32), np.empty(vector.size, np.int32)
        for tensor, part in enumerate(slices(rule.sizes)):
            moved = vector[part].astype(np.float64) - reference[part]
            steps[tensor] = rule.step_of(tensor, reference[part], moved)
            np.rint(np.divide(moved, np.float64(steps[tensor]), out=moved), out=moved)
            counts[part] = np.clip(moved, -FAR, FAR, out=moved)
        return cls(steps, counts)

    def values(self, reference: Float32Array, sizes: Sequence[int]) -> Float32Array:
        """The vector, float32 (n,).

        Raises:
            PayloadError: it is not finite.
        """
        vector = self.counts.astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is checked
            vector *= np.repeat(self.steps, sizes)
            vector += reference
        if not np.isfinite(vector).all():
            raise PayloadError("grid holds values that are not finite")
        return vector

    @cached_property
    def checksum(self) -> int:
        """The CRC-32 of the content."""
        steps, counts = self.steps.astype("<f4", copy=False), self.counts.astype("<i4", copy=False)
        return zlib.crc32(counts.data, zlib.crc32(steps.data))

    def kept(self) -> dict[str, bytes]:
        """The content as bytes, the counts in the smallest type that holds them."""
        dtype = next(d for d in _KEPT if d == _KEPT[-1] or np.abs(self.counts).max(initial=0) <= np.iinfo(d).max)
        return {"steps": self.steps.astype("<f4").tobytes(), dtype: self.counts.astype(dtype).tobytes()}

    @classmethod
    def from_kept(cls, kept: Mapping[str, bytes]) -> Lattice:
        """The inverse of `kept`; who reads it compares the checksum.

        Raises:
            KeyError: it is not there.
            ValueError: it is malformed.
        """
        dtype = next((name for name in _KEPT if name in kept), _KEPT[-1])
        counts = np.frombuffer(kept[dtype], dtype).astype(np.int32)
        return cls(np.frombuffer(kept["steps"], "<f4").astype(np.float32), counts)


def _halved(step: float, most: float) -> float:
    """The step, halved until it is at most `most`; as it is where nothing has moved yet."""
    while 0 < most < step:
        step /= 2
    return step


def _root_mean_square(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0
