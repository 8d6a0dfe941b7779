"""Lattices coded with the adaptive model of levels: every base gives the same lattice, and damage is refused."""

import numpy as np
import pytest

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Layout
from fedmrn_app.wire.lattice import FAR, Lattice
from fedmrn_app.wire.lattice_code import encode_lattice
from fedmrn_app.wire.lattice_levels import CHANGES, LEVELS, WHOLE, LatticeLevels

CODE = LatticeLevels(Layout(((16, 8, 3, 3), (10, 64))), [16, 0, 5])
D, M = CODE.layout.count, sum(CODE.dense_sizes)
RANDOM = np.random.default_rng(5)
STEPS = np.array([0.5, 0.25, 1, 1, 0.125], np.float32)


def lattice(counts: np.ndarray, steps: np.ndarray = STEPS) -> Lattice:
    return Lattice(steps.astype(np.float32), counts.astype(np.int32))


BASE = lattice(np.rint(RANDOM.standard_normal(D + M) * 4))
MOVED = lattice(BASE.counts + np.rint(RANDOM.standard_normal(D + M) * 0.5))
HALVED = lattice(MOVED.counts * 2, STEPS / np.array([2, 1, 1, 1, 1]))  # the first tensor has half the step
ODD = lattice(MOVED.counts, STEPS * np.float32(1.3))
ZEROS = lattice(np.zeros(D + M))
FARTHEST = lattice(np.full(D + M, FAR))
LATTICES = [BASE, MOVED, HALVED, ODD, ZEROS, FARTHEST, lattice(-FARTHEST.counts)]


@pytest.mark.parametrize("base", [None, *LATTICES])
@pytest.mark.parametrize("sent", LATTICES)
def test_every_base_gives_the_same_lattice(sent: Lattice, base: Lattice | None) -> None:
    data = CODE.encode(sent, base)
    for held in (base, None if base is None else base.compact()):
        read = CODE.decode(data, held)
        assert np.array_equal(read.counts, sent.counts)
        assert np.array_equal(read.steps, sent.steps)
    assert data[0] in ((WHOLE, LEVELS) if base is None else (WHOLE, CHANGES))


def test_what_a_base_predicts_is_the_nearest_point() -> None:
    assert np.array_equal(CODE.predicted(BASE, HALVED.steps[:2])[:1152], 2 * BASE.counts[:1152])
    assert np.array_equal(CODE.predicted(HALVED, BASE.steps[:2])[:1152], MOVED.counts[:1152])


def test_rare_changes_take_fewer_bytes_than_on_a_grid() -> None:
    changed = BASE.counts.copy()
    changed[:D:20] += 1  # in two columns of each output
    sent = lattice(changed)
    assert len(CODE.encode(sent, BASE)) < 0.85 * len(encode_lattice(sent, CODE.sizes, BASE))


@pytest.mark.parametrize("base", [None, BASE])
def test_damage_is_refused_in_one_line(base: Lattice | None) -> None:
    data = CODE.encode(MOVED, base)
    damaged = [data[:end] for end in range(0, len(data), 7)]
    for place in range(0, len(data), 3):
        changed = bytearray(data)
        changed[place] ^= 1 << int(RANDOM.integers(8))
        damaged.append(bytes(changed))
    refused = 0
    for each in damaged:
        try:
            read = CODE.decode(each, base)
        except PayloadError as error:
            refused += "\n" not in str(error)
        else:  # neither the steps nor the dense part have a checksum
            same_step = np.repeat(read.steps[:2] == MOVED.steps[:2], CODE.layout.sizes)
            assert each[0] != data[0] or np.array_equal(read.counts[:D][same_step], MOVED.counts[:D][same_step])
    assert refused > 0.8 * len(damaged)


def test_form_of_another_base_is_refused() -> None:
    with pytest.raises(PayloadError) as caught:
        CODE.decode(CODE.encode(MOVED, BASE), None)
    assert caught.value.code == "malformed"
