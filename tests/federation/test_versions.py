"""What the server remembers of what clients hold."""

import numpy as np
import pytest

from fedmrn_app.federation.versions import Versions, most_versions
from fedmrn_app.wire.lattice import Lattice
from fedmrn_app.wire.lattice_code import encode_grid

SIZES = [50]
MOST = most_versions(50)


def coded(number: int) -> bytes:
    return encode_grid(Lattice(np.ones(1, np.float32), np.full(50, number, np.int32)), SIZES)


def note(versions: Versions, number: int, asked: list[int], valid: list[int]) -> None:
    versions.note(number, coded(number), asked, valid)


def test_clients_hold_the_last_round_of_which_there_is_a_valid_reply() -> None:
    versions = Versions(SIZES)
    assert versions.held_by(0) == 0
    note(versions, 1, [0, 1, 2], [0, 1, 2])
    note(versions, 2, [0, 1], [0])  # 1 was late or failed, 2 was not asked
    assert [versions.held_by(client) for client in range(4)] == [2, 0, 1, 0]
    assert versions.grid(1).counts.tolist() == [1] * 50
    assert versions.grid(2).counts.tolist() == [2] * 50
    note(versions, 3, [1], [1])
    assert [versions.held_by(client) for client in range(4)] == [2, 3, 1, 0]


def test_versions_that_nobody_holds_are_dropped() -> None:
    versions = Versions(SIZES)
    note(versions, 1, [0, 1], [0, 1])
    assert len(versions) == 1
    note(versions, 2, [0, 1], [1])
    assert len(versions) == 1  # that of the first round is gone
    note(versions, 3, [1], [])
    assert len(versions) == 0
    assert versions.held_by(1) == 0


def test_the_oldest_of_too_many_versions_are_dropped() -> None:
    versions = Versions(SIZES)
    for number in range(1, MOST + 4):
        note(versions, number, [number], [number])
    assert len(versions) == MOST
    held = [versions.held_by(client) for client in range(1, MOST + 4)]
    assert held == [0] * 3 + list(range(4, MOST + 4))
    assert versions.grid(4).counts.tolist() == [4] * 50


@pytest.mark.parametrize(("weights", "most"), [(0, 256), (1 << 20, 256), (1 << 22, 64), (1 << 24, 16), (1 << 30, 16)])
def test_fewer_versions_of_large_models_are_kept(weights: int, most: int) -> None:
    assert most_versions(weights) == most
