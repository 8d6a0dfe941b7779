"""The clients that are available and their nodes, in arrays that take a few bytes per client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Host:
    """The node of a client, and the number of samples that the node announced for it."""

    node_id: int
    samples: int


class HostTable(Mapping[int, Host]):
    """The hosts of the available clients, by client in ascending order.

    Attributes:
        clients: int64 (n,), ascending.
        samples: number of samples of each client.
    """

    def __init__(self, clients: Integers, places: NDArray[np.int32], samples: Integers, nodes: Sequence[int]) -> None:
        """Make a table; `places` (n,) are the positions of the clients' nodes in `nodes`."""
        self.clients = clients
        self.samples = SampleCounts(clients, samples)
        self._places, self._nodes = places, nodes

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients.tolist())

    def __getitem__(self, client: int) -> Host:
        place = _find(self.clients, client)
        return Host(self._nodes[self._places[place]], int(self.samples.counts[place]))


class SampleCounts(Mapping[int, int]):
    """The number of samples of each client, by client in ascending order."""

    def __init__(self, clients: Integers, counts: Integers) -> None:
        self.clients, self.counts = clients, counts

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients.tolist())

    def __getitem__(self, client: int) -> int:
        return int(self.counts[_find(self.clients, client)])


def _find(clients: Integers, client: int) -> int:
    place = int(np.searchsorted(clients, client))
    if place == len(clients) or clients[place] != client:
        raise KeyError(client)
    return place


def host_table(clients: int, offers: Sequence[tuple[int, Integers, Integers]]) -> HostTable:
    """Return the table of the clients that nodes host.

    Args:
        clients: number of clients of the run.
        offers: nodes with the clients that they host and their samples; the first node that hosts a client is used.
    """
    places = np.full(clients, -1, np.int32)
    counts = np.zeros(clients, np.int64)
    for place in range(len(offers) - 1, -1, -1):
        _, hosted, samples = offers[place]
        places[hosted], counts[hosted] = place, samples
    available = np.flatnonzero(places >= 0)
    return HostTable(available, places[available], counts[available], [node for node, _, _ in offers])
