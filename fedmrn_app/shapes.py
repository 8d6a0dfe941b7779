"""Shapes of the tensors whose elements lie one after the other in a flat vector."""

from __future__ import annotations

import math

Shapes = tuple[tuple[int, ...], ...]


def sizes_of(shapes: Shapes) -> list[int]:
    """Number of elements of each tensor."""
    return [math.prod(shape) for shape in shapes]
