"""Rows of a data set, in memory or on disk: the samples of a split, or of one client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]  # row numbers, or one number per row
Split = Literal["train", "val", "test"]
Report = Callable[[str], None]  # receives one line about work that takes long


class Column(Protocol):
    """One value per row: an array, or an object that makes rows when they are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> NDArray[Any]:
        """Return the values of a slice or of a vector of row numbers, (k, ...)."""


@dataclass(frozen=True)
class Samples:
    """Rows of one split of a data set, or of one client.

    Attributes:
        x: the inputs as they are stored, (n, ...).
        y: the targets as they are stored, (n, ...).
        labels: int64 (n,), by which Dirichlet and label-shard partitions share out rows; None if there are no labels.
        groups: int64 (n,) from 0, the natural group of each row, such as a speaking role; None if there are no groups.
    """

    x: Column
    y: Column
    labels: Rows | None = None
    groups: Rows | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Rows | slice) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return copies of the inputs and targets of some rows, in the order of `rows`."""
        return np.array(self.x[rows]), np.array(self.y[rows])

    def select(self, rows: Rows | slice) -> Samples:
        """Return samples of the given rows in memory, without labels and groups."""
        return Samples(*self.take(rows))
