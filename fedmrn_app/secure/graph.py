"""Who shares pads with whom: a random ring in which each client is joined to its nearest places (Bell et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedmrn_app.errors import ConfigError, PayloadError

MIN_CLIENTS = 3  # of a sum; fewer would tell a client the other one's summand
LEAST = "secure-clients"  # of a node's configuration: the least number of clients of a sum in which it takes part


def read_least(node_config: Mapping[str, object]) -> int | None:
    """Return the least number of clients that a device's owner demands; None for no demand.

    Raises:
        ConfigError: it is no whole number, or below 1.
    """
    least = node_config.get(LEAST)
    if least is None or (type(least) is int and least >= 1):
        return least
    reason = "must be a whole number of clients, 1 or more, without quotation marks"
    raise ConfigError(f"{LEAST}={least}: {reason}", code="range", key=LEAST, value=least)


@dataclass(frozen=True, kw_only=True)
class GraphSettings:
    """How many neighbours a client has, and how many of them must stay.

    Attributes:
        neighbours: largest number of neighbours, even; rounds with at most one client more use the complete graph.
        threshold: share of a client's neighbours whose shares reconstruct a secret of its, from 1/2 to below 1.
        least: smallest number of clients of a sum, whatever the number that is asked.
    """

    neighbours: int = 48
    threshold: float = 0.6
    least: int = MIN_CLIENTS

    def degree(self, clients: int) -> int:
        """Return the number of neighbours in a round of this many clients."""
        return min(clients - 1, self.neighbours)

    def shares(self, clients: int) -> int:
        """Return the number of shares that reconstruct a secret: more than half, so that a split server gets one."""
        return self.shares_of(self.degree(clients))

    def shares_of(self, neighbours: int) -> int:
        """Return the number of shares of a client with so many neighbours, see `shares`."""
        return min(neighbours, max(math.floor(self.threshold * neighbours), neighbours // 2) + 1)

    def survivors(self, clients: int) -> int:
        """Return the smallest number of masked inputs whose sum is revealed."""
        return max(self.least, math.floor(self.threshold * clients) + 1)


@dataclass(frozen=True)
class LeastNumbers:
    """What a client asks of a sum before it takes part; the server cannot go below it.

    Attributes:
        clients: least number of clients of the sum, of which the others follow.
        settings: of the graph.
    """

    clients: int = MIN_CLIENTS
    settings: GraphSettings = GraphSettings()

    @classmethod
    def of(cls, declared: int, own: int | None = None) -> LeastNumbers:
        """Return the numbers of a run that declares so many acceptable; `own` is what the device itself demands."""
        return cls(max(MIN_CLIENTS, declared, own or 0))

    def check_neighbours(self, count: int, needed: int) -> None:
        """Check the number of neighbours of a client, and how many of them reconstruct a secret.

        Raises:
            PayloadError: there are too few.
        """
        least = self.settings.degree(self.clients)
        if count < least:
            reason = f"{count} neighbours share pads with this client, and it demands {least}"
            raise PayloadError(reason, code="secure-least", value=count)
        if needed < (share := self.settings.shares_of(count)):
            reason = f"{needed} of {count} neighbours are to reconstruct a secret, and this client demands {share}"
            raise PayloadError(reason, code="secure-least", value=needed)

    def check_clients(self, count: int) -> None:
        """Check the number of clients of a sum.

        Raises:
            PayloadError: there are too few.
        """
        if count < self.clients:
            reason = f"{count} clients are in the sum, and this client demands {self.clients}"
            raise PayloadError(reason, code="secure-least", value=count)


def draw_graph(clients: Sequence[int], degree: int, seed: int) -> dict[int, tuple[int, ...]]:
    """Return each client's neighbours, ascending; the ring's order follows from the seed.

    Args:
        clients: their numbers.
        degree: number of neighbours of each client; even, or one less than the number of clients.
        seed: of the order.
    """
    count = len(clients)
    if degree >= count - 1:
        return {client: tuple(sorted(set(clients) - {client})) for client in clients}
    ring = np.random.default_rng(seed).permutation(np.array(sorted(clients), np.int64)).tolist()
    steps = [step for distance in range(1, degree // 2 + 1) for step in (-distance, distance)]
    return {client: tuple(sorted(ring[(place + step) % count] for step in steps)) for place, client in enumerate(ring)}


def without_lonely(graph: dict[int, tuple[int, ...]], alive: set[int], least: int) -> set[int]:
    """Return the clients of `alive` that are left when those with fewer than `least` neighbours are taken out."""
    alive = set(alive)
    while lonely := {client for client in alive if len(alive.intersection(graph[client])) < least}:
        alive -= lonely
    return alive


def chance_exposed(clients: int, corrupted: int, degree: int, shares: int) -> float:
    """Return a bound of the chance that `shares` of some client's neighbours are among the corrupted clients.

    It is the sum over all clients of the tail of the hypergeometric distribution (Bell et al. 2020, section 3).
    """
    return _tail(clients, corrupted, degree, shares)


def chance_stuck(clients: int, dropped: int, degree: int, shares: int) -> float:
    """Return a bound of the chance that too few of some client's neighbours stay."""
    return _tail(clients, dropped, degree, degree - shares + 1)


def _tail(clients: int, marked: int, degree: int, least: int) -> float:
    """Return `clients` times the chance that at least `least` of `degree` neighbours are marked, at most 1."""
    others = clients - 1
    ways = sum(math.comb(marked, k) * math.comb(others - marked, degree - k) for k in range(least, degree + 1))
    return min(1.0, clients * ways / math.comb(others, degree))
