"""Vectors on a lattice: for each element a whole number of steps from a reference that both sides have.

    reference (n,) + counts (n,) * step of the tensor  -->  vector (n,)

IEEE 754 rounds these operations exactly, so both sides compute the same bits. `wire/lattice_code.py` defines the bytes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array, Runs, blocks, slices
from fedmrn_app.wire.primitives import finite
from fedmrn_app.wire.sums import pairwise_square_sum

T = TypeVar("T", bound=np.generic)

FAR = (1 << 30) - 1  # largest count: finite weights stay far below, and the difference of two fits int32
_MIN_NORMAL = float(np.finfo(np.float32).tiny)
_MAX_STEP = 2  # RMS of the differences; fine-tuning is as accurate as in float32 with 2, and loses accuracy with 4
_COUNT_TYPES = ("int8", "int16", "int32")  # types in which counts are kept

Tensors = Sequence[Float32Array]  # the elements of each of T tensors, (n_0,), (n_1,) ...


@dataclass(frozen=True)
class LatticeRule:
    """How the steps of a lattice are chosen.

    The error of a layer's output depends on the step and not on the number of weights, and the bits that a larger step
    saves are proportional to that number. At a given sum of squared steps the total is shortest if each step is
    proportional to the square root of its tensor's number of weights.

    Attributes:
        sizes: the number of elements of each of T tensors, n in all.
        masked: the number of tensors, the first ones, whose step follows from the reference; the steps of the others
            follow from the differences.
        step: the step of a masked tensor of mean size, in root mean squares (RMS) of the reference, or of the
            differences if the reference is all zero. It is halved until it is at most 2 RMS of the differences,
            because a pretrained model moves little.
        fine: the step of the other tensors, in RMS of the differences.
    """

    sizes: Sequence[int]
    masked: int
    step: float
    fine: float

    def step_of(self, tensor: int, reference: Callable[[], float], rms: float) -> np.float32:
        """Return the step of one tensor, from the RMS of its reference and of the differences.

        It changes by powers of two, and rarely.
        """
        relative = self.fine
        if tensor < self.masked:
            relative = self.step * math.sqrt(self.sizes[tensor] * self.masked / max(1, sum(self.sizes[: self.masked])))
            step = reference() * relative
            if step >= _MIN_NORMAL:
                while 0 < _MAX_STEP * rms < step:
                    step /= 2
                return np.float32(max(step, _MIN_NORMAL))
        if not rms * relative > 0:
            return np.float32(1)
        _, exponent = np.frexp(rms * relative)
        return np.float32(max(2.0 ** (int(exponent) - 1), _MIN_NORMAL))


@dataclass(frozen=True, eq=False)
class Lattice:
    """A vector on a lattice.

    Attributes:
        steps: float32 (T,), the step of each tensor, finite and above 0.
        counts: (n,), the number of steps of each element from the reference; int32, or a smaller type in a lattice that
            is only read.
    """

    steps: Float32Array
    counts: NDArray[Any]

    @classmethod
    def rounded(cls, vector: Tensors, reference: Tensors, rule: LatticeRule) -> Lattice:
        """Round a vector to the nearest lattice points.

        Args:
            vector: finite.
            reference: which both sides have.
            rule: how the steps are chosen.
        """
        steps, counts = np.empty(len(rule.sizes), np.float32), np.empty(sum(rule.sizes), np.int32)
        for tensor, (new, old, out) in enumerate(zip(vector, reference, _split(counts, rule.sizes), strict=True)):
            of_reference = partial(_root_mean_square, partial(_wide, old), old.size)
            rms = _root_mean_square(partial(difference, new, old), new.size)
            steps[tensor] = rule.step_of(tensor, of_reference, rms)
            for part in blocks(new.size):
                moved = difference(new, old, part)
                np.rint(np.divide(moved, np.float64(steps[tensor]), out=moved), out=moved)
                out[part] = np.clip(moved, -FAR, FAR, out=moved)
        return cls(steps, counts)

    def values(self, reference: Tensors) -> Float32Array:
        """Return the vector, float32 (n,).

        Raises:
            PayloadError: it is not finite.
        """
        sizes = [part.size for part in reference]
        vector = self.counts.astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # the result is checked
            for part, step, old in zip(_split(vector, sizes), self.steps, reference, strict=True):
                part *= step
                part += old
        return finite(vector, "lattice")

    def first(self, tensors: int, elements: int) -> Lattice:
        """Return the lattice of the first tensors, of so many elements; no copies."""
        return Lattice(self.steps[:tensors], self.counts[:elements])

    def last(self, tensors: int, elements: int) -> Lattice:
        """Return the lattice of the last tensors, of so many elements; no copies."""
        return Lattice(self.steps[len(self.steps) - tensors :], self.counts[self.counts.size - elements :])

    def moved(self, sizes: Sequence[int]) -> Moved:
        """Return how far the elements of the first tensors are from the reference, for tensors of these sizes."""
        return Moved(_split(self.counts, sizes), self.steps)

    @cached_property
    def checksum(self) -> int:
        """CRC-32 of the steps and of the counts as int32."""
        found = zlib.crc32(self.steps.astype("<f4", copy=False).data)
        for part in blocks(self.counts.size):
            found = zlib.crc32(self.counts[part].astype("<i4", copy=False).data, found)
        return found

    def to_array(self) -> NDArray[np.int32]:
        """Return the steps' bits and the counts, int32 (T + n,)."""
        return np.concatenate([self.steps.view(np.int32), self.counts])

    @classmethod
    def from_array(cls, array: NDArray[np.int32], tensors: int) -> Lattice:
        """Return the lattice of T tensors whose `to_array` is given."""
        return cls(array[:tensors].view(np.float32), array[tensors:])

    def compact(self) -> Lattice:
        """Return the lattice with counts in the smallest type that holds them, which is only read."""
        most = largest(self.counts)
        dtype = next(name for name in _COUNT_TYPES if most <= np.iinfo(name).max)
        return Lattice(self.steps, self.counts.astype(dtype, copy=False))

    def kept(self) -> dict[str, bytes]:
        """Return the content as bytes, the counts in the smallest type that holds them, under the type's name."""
        counts = self.compact().counts
        return {"steps": self.steps.astype("<f4").tobytes(), str(counts.dtype): counts.tobytes()}

    @classmethod
    def from_kept(cls, kept: Mapping[str, bytes]) -> Lattice:
        """Return the compact lattice that `kept` returned the content of; the caller compares the checksum.

        Raises:
            KeyError: an entry is missing.
            ValueError: an entry is malformed.
        """
        dtype = next((name for name in _COUNT_TYPES if name in kept), "int32")
        return cls(np.frombuffer(kept["steps"], "<f4").astype(np.float32), np.frombuffer(kept[dtype], dtype))


@dataclass(frozen=True, eq=False)
class Moved:
    """How far the elements of a lattice are from the reference, made where they are needed.

    Attributes:
        counts: the numbers of steps of each tensor.
        steps: of the tensors, float32.
    """

    counts: Sequence[NDArray[Any]]
    steps: Float32Array

    def __call__(self, tensor: int, part: slice | Runs) -> Float32Array:
        """Return the distances of a part of a tensor as a new array of its shape, float32; they may not be finite."""
        counts = self.counts[tensor]
        found = (counts[part] if isinstance(part, slice) else part.of(counts)).astype(np.float32)
        with np.errstate(over="ignore"):
            found *= self.steps[tensor]
        return found


def largest(counts: NDArray[Any]) -> int:
    """Return the largest magnitude of integers."""
    return max(int(counts.max(initial=0)), -int(counts.min(initial=0)))


def difference(new: Float32Array, old: Float32Array, part: slice) -> NDArray[np.float64]:
    """Return a part of the difference of two vectors, float64 (k,)."""
    return np.subtract(new[part], old[part], dtype=np.float64)


def _wide(values: Float32Array, part: slice) -> NDArray[np.float64]:
    return values[part].astype(np.float64)


def _root_mean_square(values: Callable[[slice], NDArray[np.float64]], count: int) -> float:
    return math.sqrt(pairwise_square_sum(values, count) / count) if count else 0.0


def _split(vector: NDArray[T], sizes: Sequence[int]) -> list[NDArray[T]]:
    return [vector[part] for part in slices(sizes)]
