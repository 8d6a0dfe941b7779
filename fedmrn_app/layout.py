"""The layout of the flat vector of all masked weights: the tensors' order, their offsets, and how each one lies.

A 4-D kernel (outputs, inputs, height, width) lies in channels-last order, convolutions' fastest; every other tensor as
PyTorch has it. Whatever needs a tensor's place in the vector asks here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

T = TypeVar("T", bound=np.generic)

Shape = tuple[int, ...]
Float32Array = NDArray[np.float32]


def slices(sizes: Iterable[int]) -> list[slice]:
    """The part of a vector that each tensor takes, from their numbers of elements."""
    return [slice(*bounds) for bounds in pairwise([0, *accumulate(sizes)])]


def memory_order(shape: Shape) -> tuple[int, ...]:
    """The axes of a tensor in the order in which they lie in memory, the fastest one last."""
    return (0, 2, 3, 1) if len(shape) == 4 else tuple(range(len(shape)))


@dataclass(frozen=True)
class Layout:
    """The tensors of a flat vector, by their shapes as PyTorch has them, in their order."""

    shapes: tuple[Shape, ...]

    @cached_property
    def sizes(self) -> list[int]:
        """Number of elements of each tensor."""
        return [math.prod(shape) for shape in self.shapes]

    @cached_property
    def offsets(self) -> list[int]:
        """Where each tensor starts in the vector."""
        return [0, *accumulate(self.sizes)][:-1]

    @cached_property
    def count(self) -> int:
        """d, the number of elements of the vector."""
        return sum(self.sizes)

    @cached_property
    def slices(self) -> list[slice]:
        """The part of the vector that each tensor takes."""
        return slices(self.sizes)

    def split(self, vector: NDArray[T]) -> list[NDArray[T]]:
        """Views of each tensor's elements in a vector (d,)."""
        return [vector[part] for part in self.slices]

    def held_sizes(self, held: NDArray[np.bool_] | None) -> list[int]:
        """How many elements of each tensor are held, bool (d,); None is all."""
        return self.sizes if held is None else [int(np.count_nonzero(part)) for part in self.split(held)]

    def views(self, flat: Tensor) -> Iterator[Tensor]:
        """Consecutive pieces of a flat tensor (d,) in the tensors' shapes; no copies."""
        for shape, part in zip(self.shapes, self.slices, strict=True):
            order = memory_order(shape)
            piece = flat[part].view([shape[axis] for axis in order])
            yield piece.permute([order.index(axis) for axis in range(len(shape))])

    def runs(self, tensor: int) -> tuple[int, int]:
        """(elements of a tensor that lie next to each other, such runs per output): one kernel position's inputs."""
        shape = self.shapes[tensor] or (1,)
        run = shape[memory_order(shape)[-1]]
        return run, max(1, self.sizes[tensor] // max(1, run * shape[0]))


def flatten(tensor: Tensor) -> Tensor:
    """A tensor's elements in the order in which a layout has them; no copy where they lie so."""
    return tensor.permute(memory_order(tuple(tensor.shape))).reshape(-1)


def placed(part: NDArray[Any], shape: Shape) -> NDArray[Any]:
    """View the elements of one tensor in a vector as an array with the axes of `memory_order`."""
    return part.reshape([shape[axis] for axis in memory_order(shape)])
