"""Selection of the clients of a round by the run's seed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.seeds import derive_seed

_SHUFFLE = 1 << 31  # takes the place of a repeat's number


def sample_clients(
    clients: Sequence[int] | NDArray[np.int64], count: int, seed: int, server_round: int, repeat: int = 0
) -> list[int]:
    """Draw `count` different clients and return them in ascending order.

    The result depends on `clients`, `count`, the run's seed, the round, and the number of the repeat.
    """
    return draw_clients(clients, count, derive_seed(seed, "sampling", server_round, repeat))


def draw_clients(clients: Sequence[int] | NDArray[np.int64], count: int, seed: int) -> list[int]:
    """Draw `count` different clients by a 64-bit seed, and return them in ascending order."""
    generator = np.random.Generator(np.random.Philox(key=seed))
    return sorted(int(client) for client in generator.choice(np.sort(clients), count, replace=False))


def sample_others(
    available: NDArray[np.int64],
    asked: Collection[int],
    keep: Collection[int],
    count: int,
    *,
    seed: int,
    server_round: int,
    repeat: int,
) -> list[int]:
    """Draw further clients for a round with too few usable replies.

    Args:
        available: int64, all available clients.
        asked: clients that the round has asked already; they are drawn only if there are no others.
        keep: clients whose replies are usable; they are never drawn.
        count: number of clients to draw; fewer are drawn where there are fewer.
        seed: the run's seed.
        server_round: number of the round.
        repeat: number of the repeat, from 1.
    """
    others = np.setdiff1d(available, np.array(list(asked), np.int64))
    if not len(others):
        others = np.setdiff1d(available, np.array(list(keep), np.int64))
    return sample_clients(others, min(count, len(others)), seed, server_round, repeat)


def shuffle(clients: Sequence[int], seed: int, server_round: int) -> list[int]:
    """Return the clients of a round in an order that only the run's seed and the round determine."""
    generator = np.random.Generator(np.random.Philox(key=derive_seed(seed, "sampling", server_round, _SHUFFLE)))
    return [int(client) for client in generator.permutation(clients)]
