"""The layout of the flat vector of all masked weights: the order of its tensors and of their elements.

    vector (d,):   | tensor 0            | tensor 1 | ...
    4-D kernel:      channels last, (outputs, height, width, inputs), the order in which convolutions are fastest
    other tensors:   PyTorch's order

This module does not import PyTorch: `views` and `flatten` call the methods of the tensors that they are given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T", bound=np.generic)

KERNEL_AXES = 4  # (outputs, inputs, height, width)

BLOCK = 1 << 15  # elements that are worked on at a time, so that temporaries stay in cache; a multiple of 8 bits

LARGE = 1 << 22  # weights of a model from which on memory counts more than time: what can be made again is not kept

Shape = tuple[int, ...]
Float32Array = NDArray[np.float32]


def slices(sizes: Iterable[int]) -> list[slice]:
    """Return the part of a vector that each tensor takes, from the tensors' numbers of elements."""
    return [slice(*bounds) for bounds in pairwise([0, *accumulate(sizes)])]


def blocks(count: int, size: int = BLOCK) -> Iterator[slice]:
    """Yield the parts of a vector of `count` elements that are worked on at a time, each of at most `size` elements."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def memory_order(shape: Shape) -> tuple[int, ...]:
    """Return the axes of a tensor in the order in which they lie in memory, the fastest one last."""
    return (0, 2, 3, 1) if len(shape) == KERNEL_AXES else tuple(range(len(shape)))


@dataclass(frozen=True)
class Layout:
    """The tensors of a flat vector, given by their shapes in PyTorch and their order."""

    shapes: tuple[Shape, ...]

    @cached_property
    def sizes(self) -> list[int]:
        """Number of elements of each tensor."""
        return [math.prod(shape) for shape in self.shapes]

    @cached_property
    def offsets(self) -> list[int]:
        """Element of the vector where each tensor starts."""
        return [part.start for part in self.slices]

    @cached_property
    def count(self) -> int:
        """d, the number of elements of the vector."""
        return sum(self.sizes)

    @cached_property
    def slices(self) -> list[slice]:
        """Part of the vector that each tensor takes."""
        return slices(self.sizes)

    def split(self, vector: NDArray[T]) -> list[NDArray[T]]:
        """Return views of each tensor's elements in a vector (d,)."""
        return [vector[part] for part in self.slices]

    def held_sizes(self, held: NDArray[np.bool_] | None) -> list[int]:
        """Return the number of elements of each tensor that are held, bool (d,); None holds all of them."""
        return self.sizes if held is None else [int(np.count_nonzero(part)) for part in self.split(held)]

    def views(self, flat: Tensor) -> Iterator[Tensor]:
        """Yield consecutive pieces of a flat tensor (d,) in the tensors' shapes; no copies."""
        for shape, part in zip(self.shapes, self.slices, strict=True):
            order = memory_order(shape)
            piece = flat[part].view([shape[axis] for axis in order])
            yield piece.permute([order.index(axis) for axis in range(len(shape))])

    def runs(self, tensor: int) -> tuple[int, int]:
        """Return the length of a tensor's runs, and the number of runs per output.

        A run lies next to each other in memory: the inputs of one kernel position, or the last axis of other tensors.
        """
        shape = self.shapes[tensor] or (1,)
        run = shape[memory_order(shape)[-1]]
        return run, max(1, self.sizes[tensor] // max(1, run * shape[0]))


@dataclass(frozen=True)
class Runs:
    """Some elements of some runs of a tensor.

    Attributes:
        run: number of elements of each of the tensor's runs.
        runs: which runs.
        elements: which elements of each of them.
    """

    run: int
    runs: slice
    elements: slice

    def of(self, tensor: NDArray[T]) -> NDArray[T]:
        """Return them from a tensor (n,), shape (runs, elements); no copy."""
        return tensor.reshape(-1, self.run)[self.runs, self.elements]


def flatten(tensor: Tensor) -> Tensor:
    """Return a tensor's elements in the layout's order, without a copy if they lie in that order."""
    return tensor.permute(memory_order(tuple(tensor.shape))).reshape(-1)


def placed(part: NDArray[Any], shape: Shape) -> NDArray[Any]:
    """Return the elements of one tensor in a vector as an array with the axes of `memory_order`; no copy."""
    return part.reshape([shape[axis] for axis in memory_order(shape)])
