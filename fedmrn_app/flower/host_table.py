"""The clients that are there and their nodes, in arrays: some bytes per client, whatever there are of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Host:
    """Where a client is, as its node announced it."""

    node_id: int
    samples: int


class HostTable(Mapping[int, Host]):
    """The hosts of the clients that are there, by client in ascending order.

    Attributes:
        clients: int64 (n,), ascending.
        samples: of each client, as it is asked for by a round.
    """

    def __init__(self, clients: Integers, places: NDArray[np.int32], samples: Integers, nodes: Sequence[int]) -> None:
        """Make one; `places` (n,) are those of each client's node in `nodes`."""
        self.clients = clients
        self.samples = Samples(clients, samples)
        self._places, self._nodes = places, nodes

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients.tolist())

    def __getitem__(self, client: int) -> Host:
        place = _find(self.clients, client)
        return Host(self._nodes[self._places[place]], int(self.samples.counts[place]))


class Samples(Mapping[int, int]):
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


def present(clients: int, offers: Sequence[tuple[int, Integers, Integers]]) -> HostTable:
    """Who is there.

    Args:
        clients: numbers below this are of the run.
        offers: a node, the clients that it hosts, and their samples; the first of several that host a client counts.
    """
    places = np.full(clients, -1, np.int32)
    counts = np.zeros(clients, np.int64)
    for place in range(len(offers) - 1, -1, -1):
        _, hosted, samples = offers[place]
        places[hosted], counts[hosted] = place, samples
    there = np.flatnonzero(places >= 0)
    return HostTable(there, places[there], counts[there], [node for node, _, _ in offers])


def samples_of(hosts: Mapping[int, Host]) -> Mapping[int, int]:
    """The samples of each client that is there."""
    return hosts.samples if isinstance(hosts, HostTable) else {client: host.samples for client, host in hosts.items()}
