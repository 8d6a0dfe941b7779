"""Partitions of more clients than rows: each client's rows are drawn with replacement, when they are asked for.

A client's rows follow from the seed and its number alone, so that nothing is stored per client.
"""

from __future__ import annotations

import numpy as np

from fedmrn_app.data.partition import Partition
from fedmrn_app.data.samples import Rows


class DrawnPartition(Partition):
    """Rows of `clients` clients, each with so many rows drawn with replacement, some rows more than once.

    IID clients draw from all rows. Others draw from labels: of k different ones (label shards), or of all in shares
    that are the labels' frequencies times a Dirichlet draw of each client's own.
    """

    def __init__(
        self,
        rows: int,
        labels: Rows | None,
        clients: int,
        each: int,
        seed: int,
        *,
        alpha: float | None = None,
        labels_per_client: int | None = None,
    ) -> None:
        """Make one.

        Args:
            rows: of the training split.
            labels: int64 (rows,), by which rows are drawn unevenly; None to draw from all.
            clients: how many there are.
            each: rows of each client.
            seed: 64-bit seed.
            alpha: concentration of the Dirichlet draws, where `labels` are given.
            labels_per_client: k, instead of `alpha`.
        """
        self._rows, self._clients, self._each, self._seed = rows, clients, each, seed
        self._alpha, self._k = alpha, labels_per_client
        if labels is not None:
            _, counts = np.unique(labels, return_counts=True)
            self._order = np.argsort(labels, kind="stable")
            self._ends = np.cumsum(counts)
            self._starts = self._ends - counts
        self._uneven = labels is not None

    def __len__(self) -> int:
        return self._clients

    def size(self, client: int) -> int:
        """How many rows a client has."""
        return self._each

    def rows_of(self, client: int) -> Rows:
        """A client's rows, int64, ascending."""
        random = np.random.Generator(np.random.Philox(key=[self._seed, client]))
        if not self._uneven:
            return np.sort(random.integers(0, self._rows, self._each))
        label = random.choice(len(self._ends), self._each, p=self._shares(random))
        return np.sort(self._order[random.integers(self._starts[label], self._ends[label])])

    def _shares(self, random: np.random.Generator) -> np.ndarray:
        """How likely a row of a client has each label, float64 (labels,)."""
        counts = (self._ends - self._starts).astype(np.float64)
        if self._k is not None:
            shares = np.zeros(len(counts))
            shares[random.choice(len(counts), self._k, replace=False)] = 1
        else:
            shares = counts * random.dirichlet(np.full(len(counts), self._alpha))
        return np.asarray(shares / shares.sum())
