"""Rows in memory or on disk: the samples of a split, or of one client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


class Column(Protocol):
    """One value per row; an array, or something that makes rows when they are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> NDArray[Any]:
        """The values of a slice or of a vector of row numbers, (k, ...)."""


@dataclass(frozen=True)
class Samples:
    """Rows of one split of a data set, or of one client.

    Attributes:
        x: the inputs, (n, ...), as they are stored.
        y: the targets, (n, ...), likewise.
        labels: int64 (n,), by which rows are shared out unevenly (Dirichlet, label shards); None where there are none.
        groups: int64 (n,) from 0, to whom each row belongs by nature, such as a speaking role; None likewise.
    """

    x: Column
    y: Column
    labels: Rows | None = None
    groups: Rows | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Rows | slice) -> tuple[NDArray[Any], NDArray[Any]]:
        """Copies of the inputs and targets of some rows, in their order."""
        return np.array(self.x[rows]), np.array(self.y[rows])

    def select(self, rows: Rows | slice) -> Samples:
        """The given rows alone, in memory."""
        return Samples(*self.take(rows))
