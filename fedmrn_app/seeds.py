"""The seeds of a run: one 64-bit number per purpose, round and client, all derived from the run's seed."""

from __future__ import annotations

from typing import Literal, get_args

_U64 = (1 << 64) - 1

# the order is part of every run's result: new purposes go to the end
Purpose = Literal[
    "noise",
    "batches",
    "method",
    "sampling",
    "model",
    "partition",
    "frozen",
    "privacy",
    "private_sampling",
    "validation",
    "slow",
    "holdout",
    "evaluation",
    "private_evaluation",
    "private_tallies",
]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


def derive_seed(run_seed: int, purpose: Purpose, server_round: int = 0, client: int = 0) -> int:
    """Return the 64-bit seed of one purpose, round and client of a run.

    Within a run and purpose the map from (round, client) to seeds is one-to-one, so no two clients or rounds share a
    seed. Across runs and purposes seeds collide as rarely as random numbers.

    Raises:
        ValueError: the run's seed is not below 2^56, or the round or client is not below 2^32.
    """
    if not 0 <= run_seed < 1 << 56:
        raise ValueError(f"seed {run_seed} is not in [0, 2^56)")
    if not (0 <= server_round < 1 << 32 and 0 <= client < 1 << 32):
        raise ValueError(f"round {server_round} or client {client} is not in [0, 2^32)")
    stream = mix(run_seed << 8 | PURPOSES.index(purpose))
    return mix(stream ^ (server_round << 32 | client))


def private_seed(run_seed: int, server_round: int, client: int) -> int:
    """Return the 64-bit seed of a client's own randomness in a round, which is no secret: it follows from the run's."""
    return derive_seed(run_seed, "method", server_round, client)


def mix(x: int) -> int:
    """Return the SplitMix64 hash of a 64-bit integer, a bijection of 64-bit integers (Steele et al. 2014)."""
    x = (x + 0x9E3779B97F4A7C15) & _U64
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _U64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _U64
    return x ^ x >> 31
