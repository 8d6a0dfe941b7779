"""Which version of the global model each client holds, so that it need be sent only what has changed since."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedmrn_app.wire.lattice import Lattice
from fedmrn_app.wire.lattice_code import decode_grid

_FEWEST, _MOST = 16, 256  # with one client in a hundred asked a round, nine in ten hold one of the last 256
_ROOM = 1 << 28  # weights, of all versions together beyond the fewest; each takes at most about a byte


def most_versions(weights: int) -> int:
    """How many versions of a model of so many weights are kept, by the server and by clients: more of small models."""
    return min(max(_ROOM // max(weights, 1), _FEWEST), _MOST)


class Versions:
    """What the server remembers of what clients hold.

    A client holds the version of the last round of which it sent a valid reply. Versions are kept as coded from the
    first vector, the latest `most_versions` of those that any client holds.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._most = most_versions(sum(sizes))
        self._coded: dict[int, bytes] = {}
        self._holds: dict[int, int] = {}

    def held_by(self, client: int) -> int:
        """The round whose version a client holds; 0 where that is none, or one that is no longer kept."""
        return self._holds.get(client, 0)

    def grid(self, server_round: int) -> Lattice:
        """The version of a round that a client holds."""
        return decode_grid(self._coded[server_round], self._sizes)

    def note(self, server_round: int, coded: bytes, asked: Iterable[int], valid: Iterable[int]) -> None:
        """Note the end of a round.

        Args:
            server_round: its number.
            coded: its version, from the first vector.
            asked: the clients that were asked; who gave no valid reply holds nothing that one could rely on.
            valid: those of whom there is a valid reply.
        """
        self.forget(asked)
        self._holds.update(dict.fromkeys(valid, server_round))
        self._coded[server_round] = coded
        kept = sorted(set(self._holds.values()))[-self._most :]
        self._coded = {number: self._coded[number] for number in kept}
        self._holds = {client: number for client, number in self._holds.items() if number in self._coded}

    def forget(self, clients: Iterable[int]) -> None:
        """Note that one cannot rely on what these clients hold."""
        for client in clients:
            self._holds.pop(client, None)

    def __len__(self) -> int:
        return len(self._coded)
