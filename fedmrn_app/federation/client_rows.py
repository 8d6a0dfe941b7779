"""The rows of the clients whose data are on this machine: those that they train on, and those that they hold out."""

from __future__ import annotations

from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.holdout import held_count, held_rows
from fedmrn_app.data.partition import DrawnPartition, Partition
from fedmrn_app.data.samples import Rows, Samples
from fedmrn_app.errors import DataError
from fedmrn_app.seeds import derive_seed


class ClientRows:
    """The rows of each client.

    Attributes:
        samples: the training split; on a device with data of its own, the samples of its only client.
    """

    def __init__(
        self,
        samples: Samples,
        partition: Partition | None = None,
        *,
        share: float | None = None,
        seed: int = 0,
        own_test: Samples | None = None,
    ) -> None:
        """Take the rows of a run's clients.

        Args:
            samples: the training split, or the samples of the only client.
            partition: of `samples` over the clients; None where all of them belong to one client.
            share: share of each client's rows that it does not train on; None for none.
            seed: the run's seed, which draws them.
            own_test: the test split that a device has brought, which takes the place of held-out rows.
        """
        self.samples = samples
        self._partition = partition
        self._share = share if own_test is None else None
        self._seed = seed
        self._own_test = own_test

    def count(self, client: int) -> int:
        """Return the number of rows that a client trains on."""
        total = len(self.samples) if self._partition is None else self._partition.size(client)
        if self._share is None:
            return total
        if self.samples.groups is None and not self._overlap:
            return total - held_count(total, self._share)
        return total - int(np.count_nonzero(self._held(client, self._rows(client))))

    def training(self, client: int) -> Samples:
        """Return the rows that a client trains on, in memory."""
        if self._share is None:
            return self.samples.select(slice(None) if self._partition is None else self._partition[client])
        rows = self._rows(client)
        return self.samples.select(rows[~self._held(client, rows)])

    def held_out(self, client: int) -> Samples:
        """Return the rows on which a client evaluates, in memory; there may be none.

        Raises:
            DataError: nothing is held out, and the device has brought no test split.
        """
        if self._own_test is not None:
            return self._own_test.select(slice(None))
        self.must_hold_out()
        rows = self._rows(client)
        return self.samples.select(rows[self._held(client, rows)])

    def must_hold_out(self) -> None:
        """Check that clients have rows on which they evaluate.

        Raises:
            DataError: they have none.
        """
        if self._share is None and self._own_test is None:
            reason = "these rows have no test split to evaluate on; start the run with evaluation.holdout=0.2"
            raise DataError(f"evaluation.holdout=null: {reason}", code="split", key="evaluation.holdout")

    def _rows(self, client: int) -> Rows:
        return np.arange(len(self.samples)) if self._partition is None else np.asarray(self._partition[client])

    @property
    def _overlap(self) -> bool:
        """Whether a row may belong to several clients, or several times to one."""
        return isinstance(self._partition, DrawnPartition)

    @cached_property
    def _held_by_all(self) -> NDArray[np.bool_]:
        """The rows that no client trains on, where clients share rows."""
        samples, share = self.samples, cast(float, self._share)
        return held_rows(len(samples), share, derive_seed(self._seed, "holdout"), samples.labels, samples.groups)

    def _held(self, client: int, rows: Rows) -> NDArray[np.bool_]:
        """Return which of a client's rows are held out."""
        if self._overlap:
            return self._held_by_all[rows]
        labels, groups = (None if of is None else of[rows] for of in (self.samples.labels, self.samples.groups))
        seed = derive_seed(self._seed, "holdout", client=client)
        return held_rows(len(rows), cast(float, self._share), seed, labels, groups)
