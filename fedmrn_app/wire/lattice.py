"""Vectors on a lattice: for each element a whole number of steps from a reference that both sides have.

    reference (n,) + counts (n,) * step of the tensor  -->  vector (n,)

IEEE 754 rounds these operations exactly, so both sides compute the same bits. `wire/lattice_code.py` defines the bytes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array, slices
from fedmrn_app.wire.primitives import finite

FAR = (1 << 30) - 1  # largest count: finite weights stay far below, and the difference of two fits int32
_MIN_NORMAL = float(np.finfo(np.float32).tiny)
_MAX_STEP = 2  # RMS of the differences; fine-tuning is as accurate as in float32 with 2, and loses accuracy with 4
_COUNT_TYPES = ("int8", "int16", "int32")  # types in which counts are kept


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

    def step_of(self, tensor: int, reference: Float32Array, moved: NDArray[np.float64]) -> np.float32:
        """Return the step of one tensor; it changes by powers of two, and rarely."""
        rms = _root_mean_square(moved)
        relative = self.fine
        if tensor < self.masked:
            relative = self.step * math.sqrt(self.sizes[tensor] * self.masked / max(1, sum(self.sizes[: self.masked])))
            step = _root_mean_square(reference.astype(np.float64)) * relative
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
        counts: int32 (n,), the number of steps of each element from the reference.
    """

    steps: Float32Array
    counts: NDArray[np.int32]

    @classmethod
    def rounded(cls, vector: Float32Array, reference: Float32Array, rule: LatticeRule) -> Lattice:
        """Round a vector to the nearest lattice points.

        Args:
            vector: float32 (n,), finite.
            reference: float32 (n,), which both sides have.
            rule: how the steps are chosen.
        """
        steps, counts = np.empty(len(rule.sizes), np.float32), np.empty(vector.size, np.int32)
        for tensor, part in enumerate(slices(rule.sizes)):
            moved = vector[part].astype(np.float64) - reference[part]
            steps[tensor] = rule.step_of(tensor, reference[part], moved)
            np.rint(np.divide(moved, np.float64(steps[tensor]), out=moved), out=moved)
            counts[part] = np.clip(moved, -FAR, FAR, out=moved)
        return cls(steps, counts)

    def values(self, reference: Float32Array, sizes: Sequence[int]) -> Float32Array:
        """Return the vector, float32 (n,).

        Raises:
            PayloadError: it is not finite.
        """
        vector = self.moved(sizes)
        with np.errstate(over="ignore", invalid="ignore"):  # the result is checked
            vector += reference
        return finite(vector, "lattice")

    def moved(self, sizes: Sequence[int]) -> Float32Array:
        """Return how far each element is from the reference, float32 (n,); it may not be finite."""
        moved = self.counts.astype(np.float32)
        with np.errstate(over="ignore"):
            for step, part in zip(self.steps, slices(sizes), strict=True):
                moved[part] *= step
        return moved

    @cached_property
    def checksum(self) -> int:
        """CRC-32 of the steps and counts."""
        steps, counts = self.steps.astype("<f4", copy=False), self.counts.astype("<i4", copy=False)
        return zlib.crc32(counts.data, zlib.crc32(steps.data))

    def to_array(self) -> NDArray[np.int32]:
        """Return the steps' bits and the counts, int32 (T + n,)."""
        return np.concatenate([self.steps.view(np.int32), self.counts])

    @classmethod
    def from_array(cls, array: NDArray[np.int32], tensors: int) -> Lattice:
        """Return the lattice of T tensors whose `to_array` is given."""
        return cls(array[:tensors].view(np.float32), array[tensors:])

    def kept(self) -> dict[str, bytes]:
        """Return the content as bytes, the counts in the smallest type that holds them, under the type's name."""
        largest = np.abs(self.counts).max(initial=0)
        dtype = next(name for name in _COUNT_TYPES if name == "int32" or largest <= np.iinfo(name).max)
        return {"steps": self.steps.astype("<f4").tobytes(), dtype: self.counts.astype(dtype).tobytes()}

    @classmethod
    def from_kept(cls, kept: Mapping[str, bytes]) -> Lattice:
        """Return the lattice that `kept` returned the content of; the caller compares the checksum.

        Raises:
            KeyError: an entry is missing.
            ValueError: an entry is malformed.
        """
        dtype = next((name for name in _COUNT_TYPES if name in kept), "int32")
        counts = np.frombuffer(kept[dtype], dtype).astype(np.int32)
        return cls(np.frombuffer(kept["steps"], "<f4").astype(np.float32), counts)


def _root_mean_square(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0
