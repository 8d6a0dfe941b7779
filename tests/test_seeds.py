"""Seeds are fixed for all versions, and no two rounds or clients share one."""

import pytest

from fedmrn_app.seeds import PURPOSES, Purpose, derive_seed, mix


def test_seeds_are_distinct() -> None:
    seeds = {
        derive_seed(run, purpose, server_round, client)
        for run in (0, 1, 2**40)
        for purpose in PURPOSES
        for server_round in range(40)
        for client in range(100)
    }
    assert len(seeds) == 3 * len(PURPOSES) * 40 * 100
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_seeds_are_known() -> None:
    """The order of the purposes is part of every result; `mix` gives SplitMix64's first outputs for the seed 0."""
    assert derive_seed(0, "noise", 1, 0) == 0x2D3C4559EEF15B4B
    assert PURPOSES[:7] == ("noise", "batches", "method", "sampling", "model", "partition", "frozen")
    counter = 0x9E3779B97F4A7C15
    assert [mix(step * counter % 2**64) for step in range(3)] == [
        0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("run_seed", "purpose", "server_round", "client"),
    [(1 << 56, "noise", 0, 0), (-1, "noise", 0, 0), (0, "noise", 1 << 32, 0), (0, "noise", 1, -1), (0, "other", 1, 1)],
)
def test_seeds_out_of_range_are_refused(run_seed: int, purpose: Purpose, server_round: int, client: int) -> None:
    with pytest.raises(ValueError, match=r"seed|round|tuple"):
        derive_seed(run_seed, purpose, server_round, client)
