"""The secure sum is exact, survives dropouts up to the threshold, and reveals nothing else."""

import os
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from fedmrn_app.errors import RunError
from fedmrn_app.secure import messages
from fedmrn_app.secure.fields import Field
from fedmrn_app.secure.graph import GraphSettings, chance_exposed, chance_stuck, draw_graph
from fedmrn_app.secure.messages import BINDING, HEADER_SIZE
from tests.secure.run import Masks, dense_of, run_round

PHASES = ("keys", "shares", "masked", "revealed")


def masks_of(clients: int, size: int = 1001, seed: int = 0) -> Masks:
    return np.random.default_rng(seed).integers(0, 2, (clients, size), np.uint8)


def check(
    masks: Masks,
    lost: dict[str, list[int]],
    settings: GraphSettings | None = None,
    random: Callable[[int], bytes] = os.urandom,
) -> None:
    clients, (total, dense) = run_round(masks, lost=lost, settings=settings, random=random)
    gone = {client for phase in PHASES[:3] for client in lost.get(phase, ())}
    assert clients == [client for client in range(len(masks)) if client not in gone]
    np.testing.assert_array_equal(total, masks[clients].sum(0))
    expected = np.sum([dense_of(client) for client in clients], 0, np.uint64) % np.uint64(1 << 48)
    np.testing.assert_array_equal(dense, expected)


def test_ten_of_ten() -> None:
    check(masks_of(10), {})


@pytest.mark.parametrize("phase", PHASES)
def test_dropouts_in_each_phase(phase: str) -> None:
    check(masks_of(10), {phase: [3, 8]})


def test_dropouts_in_all_phases_of_a_sparse_graph() -> None:
    settings = GraphSettings(neighbours=12, threshold=0.5)
    lost = {"keys": [0], "shares": [5, 17], "masked": [9, 30], "revealed": [2, 39]}
    # in one of a hundred graphs these are too many neighbours of some client
    check(masks_of(40, 100), lost, settings, np.random.default_rng(0).bytes)


@pytest.mark.parametrize("phase", PHASES)
def test_below_the_threshold_nothing_is_reconstructed(phase: str) -> None:
    with pytest.raises(RunError, match="no secure sum"):
        run_round(masks_of(10), lost={phase: [1, 2, 3, 4, 5]})


def test_six_of_nine_shares_are_needed() -> None:
    settings = GraphSettings()
    assert [settings.shares(count) for count in (3, 10, 100)] == [2, 6, 29]
    assert [settings.survivors(count) for count in (3, 10, 100)] == [3, 7, 61]


@pytest.mark.slow
def test_what_the_server_sees_of_a_client_is_uniform() -> None:
    """With the same masks in every round, each masked weight takes all 8 values equally often."""
    masks, rounds, client = masks_of(5, 256), 120, 3
    counts, high = np.zeros((256, 8)), np.zeros(256)
    for _ in range(rounds):
        seen: dict[int, bytes] = {}
        run_round(masks, seen=seen)
        content = np.frombuffer(seen[client], np.uint8, offset=HEADER_SIZE + BINDING)
        values = Field(256, 3).unpack(content[:96].tobytes())
        counts[np.arange(256), values] += 1
        high += np.bincount(content[96:], minlength=256)
    assert stats.chisquare(counts.sum(0)).pvalue > 1e-4
    per_weight = ((counts - rounds / 8) ** 2 / (rounds / 8)).sum()
    assert 1e-4 < stats.chi2.sf(per_weight, 256 * 7) < 1 - 1e-4
    assert stats.chisquare(high).pvalue > 1e-4  # of the dense values' bytes


@pytest.mark.parametrize("bits", [1, 3, 4, 8, 11, 16, 24, 31, 32, 48, 64])
@pytest.mark.parametrize("count", [0, 1, 7, 70_001])
def test_packing(bits: int, count: int) -> None:
    field = Field(count, bits)
    words = np.random.default_rng(bits).integers(0, 2**bits, count, np.uint64).astype(field.dtype)
    data = field.pack(words)
    assert len(data) == field.size == (count * bits + 7) // 8
    np.testing.assert_array_equal(field.unpack(data), words)


def test_the_graph_is_regular_and_symmetric() -> None:
    clients = range(5, 105)
    graph = draw_graph(clients, 32, 1)
    assert all(len(graph[one]) == 32 and one not in graph[one] for one in clients)
    assert all(one in graph[other] for one in clients for other in graph[one])
    assert graph != draw_graph(clients, 32, 2)


def test_chances_by_counting() -> None:
    """Three of the four neighbours are the three bad ones of 19 others: 16 of the 3,876 choices."""
    assert chance_exposed(20, 3, 4, 3) == pytest.approx(20 * 16 / 3876)
    assert chance_stuck(20, 3, 4, 2) == chance_exposed(20, 3, 4, 3)


def test_a_wrong_share_ends_the_round_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    true = messages.write_revealed
    monkeypatch.setattr(messages, "write_revealed", lambda envelope, shares: true(envelope, [bytes(16)] * len(shares)))
    with pytest.raises(RunError, match="a share of client 0 is wrong"):
        run_round(masks_of(10, 8))
