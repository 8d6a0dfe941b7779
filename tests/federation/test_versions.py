"""The server's record of the versions that clients hold."""

from functools import partial

import numpy as np
import pytest

from fedmrn_app.federation.versions import Versions, most_versions
from fedmrn_app.wire.lattice import Lattice
from fedmrn_app.wire.lattice_code import decode_lattice, encode_lattice

SIZES = [50]
MOST = most_versions(50)


def note(versions: Versions, number: int, asked: list[int], valid: list[int]) -> None:
    lattice = Lattice(np.ones(1, np.float32), np.full(50, number, np.int32))
    versions.note(number, encode_lattice(lattice, SIZES), asked, valid)


def held(versions: Versions, clients: int) -> list[int]:
    return [versions.held_by(client) for client in range(clients)]


def test_clients_hold_the_version_of_their_last_valid_reply() -> None:
    versions = Versions(sum(SIZES), partial(decode_lattice, sizes=SIZES))
    assert held(versions, 1) == [0]
    note(versions, 1, [0, 1, 2], [0, 1, 2])
    note(versions, 2, [0, 1], [0])  # 1 was late or failed, 2 was not asked
    assert held(versions, 4) == [2, 0, 1, 0]
    assert versions.lattice(1).counts.tolist() == [1] * 50
    assert versions.lattice(2).counts.tolist() == [2] * 50
    note(versions, 3, [1], [1])
    assert held(versions, 4) == [2, 3, 1, 0]
    versions.forget([0, 3])
    assert held(versions, 4) == [0, 3, 1, 0]


def test_versions_that_no_client_holds_are_dropped() -> None:
    versions = Versions(sum(SIZES), partial(decode_lattice, sizes=SIZES))
    lengths = []
    for number, asked, valid in ((1, [0, 1], [0, 1]), (2, [0, 1], [1]), (3, [1], [])):
        note(versions, number, asked, valid)
        lengths.append(len(versions))
    assert lengths == [1, 1, 0]
    assert held(versions, 2) == [0, 0]


def test_oldest_of_too_many_versions_are_dropped() -> None:
    versions = Versions(sum(SIZES), partial(decode_lattice, sizes=SIZES))
    for number in range(MOST + 3):
        note(versions, number + 1, [number], [number])
    assert len(versions) == MOST
    assert held(versions, MOST + 3) == [0] * 3 + list(range(4, MOST + 4))
    assert versions.lattice(4).counts.tolist() == [4] * 50


@pytest.mark.parametrize(("weights", "most"), [(0, 256), (1 << 20, 256), (1 << 22, 64), (1 << 24, 16), (1 << 30, 16)])
def test_large_models_keep_fewer_versions(weights: int, most: int) -> None:
    assert most_versions(weights) == most
