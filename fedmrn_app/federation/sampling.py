"""Who is asked in a round: clients drawn by the run's seed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.seeds import derive_seed

_ORDER = 1 << 31  # stands where repeats are counted


def sample_clients(
    clients: Sequence[int] | NDArray[np.int64], count: int, seed: int, server_round: int, repeat: int = 0
) -> list[int]:
    """Draw `count` different clients of a round, in ascending order; the same for the same seed, round and repeat."""
    generator = np.random.Generator(np.random.Philox(key=derive_seed(seed, "sampling", server_round, repeat)))
    return sorted(int(client) for client in generator.choice(np.sort(clients), count, replace=False))


def sample_others(
    there: NDArray[np.int64],
    asked: Collection[int],
    keep: Collection[int],
    count: int,
    seed: int,
    server_round: int,
    repeat: int,
) -> list[int]:
    """Draw further clients for a round of too few replies.

    Args:
        there: all that there are.
        asked: those that the round has asked; they are drawn only where there are no others.
        keep: those of them whose replies are usable, who are not drawn.
        count: how many to draw, of as many as there are.
        seed: of the run.
        server_round: the round.
        repeat: which time it is, from 1.
    """
    others = np.setdiff1d(there, np.array(list(asked), np.int64))
    if not len(others):
        others = np.setdiff1d(there, np.array(list(keep), np.int64))
    return sample_clients(others, min(count, len(others)), seed, server_round, repeat)


def shuffle(clients: Sequence[int], seed: int, server_round: int) -> list[int]:
    """The clients of a round in an order that depends on seed and round alone."""
    generator = np.random.Generator(np.random.Philox(key=derive_seed(seed, "sampling", server_round, _ORDER)))
    return [int(client) for client in generator.permutation(clients)]
