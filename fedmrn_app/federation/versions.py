"""The versions of the global model that clients hold, so that a client is sent only what has changed since."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fedmrn_app.wire.lattice import Lattice

_MIN_VERSIONS, _MAX_VERSIONS = 16, 256  # if rounds ask 1% of the clients, 9 in 10 hold one of the last 256 versions
_MAX_WEIGHTS = 1 << 28  # of all versions together, beyond the fewest; a weight takes at most about a byte


def most_versions(weights: int) -> int:
    """Return how many versions of a model with this number of weights the server and clients keep."""
    return min(max(_MAX_WEIGHTS // max(weights, 1), _MIN_VERSIONS), _MAX_VERSIONS)


@dataclass(frozen=True, eq=False)
class Version:
    """The global model of a round, from 1, as a client received it on a lattice."""

    server_round: int
    lattice: Lattice


class Versions:
    """The server's record of the versions that clients hold.

    A client holds the version of the last round in which it sent a valid reply. The server keeps the versions that any
    client holds, at most the latest `most_versions`, as they are coded from the first vector.
    """

    def __init__(self, weights: int, decode: Callable[[bytes], Lattice]) -> None:
        """`weights` is the number of elements of the lattice, and `decode` reads one that is coded by itself."""
        self._decode = decode
        self._most = most_versions(weights)
        self._coded: dict[int, bytes] = {}
        self._holds: dict[int, int] = {}

    def held_by(self, client: int) -> int:
        """Return the round whose version a client holds; 0 for none that is kept."""
        return self._holds.get(client, 0)

    def lattice(self, server_round: int) -> Lattice:
        """Return the version of a round that a client holds."""
        return self._decode(self._coded[server_round])

    def note(self, server_round: int, coded: bytes, asked: Iterable[int], valid: Iterable[int]) -> None:
        """Record the end of a round.

        Args:
            server_round: number of the round.
            coded: its version, coded from the first vector.
            asked: clients that were asked; without a valid reply it is unknown what a client holds.
            valid: clients that sent a valid reply.
        """
        self.forget(asked)
        self._holds.update(dict.fromkeys(valid, server_round))
        self._coded[server_round] = coded
        kept = sorted(set(self._holds.values()))[-self._most :]
        self._coded = {number: self._coded[number] for number in kept}
        self._holds = {client: number for client, number in self._holds.items() if number in self._coded}

    def forget(self, clients: Iterable[int]) -> None:
        """Record that it is unknown what these clients hold."""
        for client in clients:
            self._holds.pop(client, None)

    def __len__(self) -> int:
        return len(self._coded)
