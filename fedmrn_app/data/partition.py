"""What a partition is: the rows of each client, which are read or drawn when they are asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import overload

from fedmrn_app.data.samples import Rows


class Partition(Sequence[Rows]):
    """The rows of each client by its number."""

    @abstractmethod
    def size(self, client: int) -> int:
        """How many rows a client has."""

    @abstractmethod
    def rows_of(self, client: int) -> Rows:
        """The rows of one of the clients, int64, of as many as `size` says."""

    @overload
    def __getitem__(self, client: int) -> Rows: ...
    @overload
    def __getitem__(self, client: slice) -> list[Rows]: ...
    def __getitem__(self, client: int | slice) -> Rows | list[Rows]:
        if isinstance(client, slice):
            return [self.rows_of(one) for one in range(*client.indices(len(self)))]
        if not 0 <= client < len(self):
            raise IndexError(client)
        return self.rows_of(client)
