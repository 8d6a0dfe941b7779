"""Seeds: no two rounds or clients share one, and they are the same for ever."""

import pytest

from fedmrn_app.seeds import PURPOSES, derive_seed, mix


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


def test_seed_is_known() -> None:
    assert derive_seed(0, "noise", 1, 0) == 0x2D3C4559EEF15B4B
    with pytest.raises(ValueError, match="seed"):
        derive_seed(1 << 56, "noise")
    with pytest.raises(ValueError, match="round"):
        derive_seed(0, "noise", 1 << 32)
    with pytest.raises(ValueError, match="client"):
        derive_seed(0, "noise", 1, -1)


def test_mix_is_known() -> None:
    """SplitMix64's first outputs for the seed 0: what it gives after each step of its counter."""
    counter = 0x9E3779B97F4A7C15
    assert [mix(step * counter % 2**64) for step in range(3)] == [
        0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F,
    ]  # fmt: skip


def test_order_of_purposes_is_part_of_every_result() -> None:
    assert PURPOSES[:7] == ("noise", "batches", "method", "sampling", "model", "partition", "frozen")
