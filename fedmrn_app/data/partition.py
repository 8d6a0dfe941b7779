"""The rows of each client, which are read or drawn when they are asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.samples import Rows

Floats = NDArray[np.float64]
# the relative probability of each label among one client's rows, float64 (labels,), from the counts of all labels
LabelWeights = Callable[[Floats, np.random.Generator], Floats]


class Partition(ABC):
    """A sequence of the clients' rows."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of clients."""

    @abstractmethod
    def size(self, client: int) -> int:
        """Return the number of rows of a client."""

    @abstractmethod
    def rows_of(self, client: int) -> Rows:
        """Return the row numbers of an existing client, int64 (size,), in ascending order."""

    def __getitem__(self, client: int) -> Rows:
        if not 0 <= client < len(self):
            raise IndexError(client)
        return self.rows_of(client)

    def __iter__(self) -> Iterator[Rows]:
        return (self.rows_of(client) for client in range(len(self)))


class StoredPartition(Partition):
    """Rows mapped from the disk; a process holds nothing per client."""

    def __init__(self, rows: Rows, ends: Rows, moved: tuple[int, int] = (0, 0)) -> None:
        """Take the rows of all clients, one client after the other.

        Args:
            rows: int64 (n,).
            ends: int64 (clients,), the end of each client's rows.
            moved: the numbers of clients that had too few rows and of rows that were moved to them.
        """
        self._rows, self._ends, self.moved = np.asarray(rows), np.asarray(ends), moved

    def sizes(self) -> Rows:
        """Return the number of rows of each client, int64 (clients,)."""
        return np.diff(self._ends, prepend=0)

    def __len__(self) -> int:
        return len(self._ends)

    def size(self, client: int) -> int:
        """Return the number of rows of a client."""
        return len(self.rows_of(client))

    def rows_of(self, client: int) -> Rows:
        """Return the mapped rows of a client."""
        return self._rows[int(self._ends[client - 1]) if client else 0 : int(self._ends[client])]


@dataclass(kw_only=True)
class DrawnPartition(Partition):
    """Rows drawn with replacement, for more clients than rows.

    A client's rows follow from the seed and its number alone, so that nothing is stored per client.
    """

    clients: int
    each: int  # number of rows of each client
    seed: int  # of 64 bits
    count: int  # number of rows of the training split
    labels: InitVar[Rows | None]  # int64 (count,), by which rows are drawn; None to draw from all rows alike
    weights: LabelWeights

    def __post_init__(self, labels: Rows | None) -> None:
        self._order: Rows | None = None
        if labels is not None:
            counts = np.unique(labels, return_counts=True)[1]
            self._order = np.argsort(labels, kind="stable")
            self._ends = np.cumsum(counts)
            self._starts = self._ends - counts

    def __len__(self) -> int:
        return self.clients

    def size(self, client: int) -> int:
        """Return the number of rows, which is the same for all clients."""
        return self.each

    def rows_of(self, client: int) -> Rows:
        """Draw the rows of a client, always the same ones."""
        random = np.random.Generator(np.random.Philox(key=[self.seed, client]))
        if self._order is None:
            return np.sort(random.integers(0, self.count, self.each))
        weights = self.weights((self._ends - self._starts).astype(np.float64), random)
        label = random.choice(len(self._ends), self.each, p=weights / weights.sum())
        return np.sort(self._order[random.integers(self._starts[label], self._ends[label])])
