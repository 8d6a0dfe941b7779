"""Vectors on a grid: near enough, the plain form element by element, and what is kept comes back."""

import math

import numpy as np
import pytest

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array
from fedmrn_app.wire.lattice import Lattice, LatticeRule

SIZES = [300, 5000, 1, 0, 40, 7]  # of which the last two are dense
RULE = LatticeRule(SIZES, 4, 0.25, 1 / 32)
RANDOM = np.random.default_rng(3)
FIRST = (RANDOM.standard_normal(sum(SIZES)) * 0.02).astype(np.float32)
MOVED = (FIRST + RANDOM.standard_normal(sum(SIZES)) * 0.01).astype(np.float32)


def plain_grid(vector: Float32Array, reference: Float32Array, rule: LatticeRule) -> Float32Array:
    """The plain reference: each tensor's whole steps, one element at a time."""
    read = []
    start = 0
    for tensor, size in enumerate(rule.sizes):
        old, new = reference[start : start + size], vector[start : start + size]
        start += size
        if size == 0:
            continue
        large = size / np.mean(rule.sizes[: rule.masked])
        step = np.float32(np.sqrt(np.mean(old.astype(np.float64) ** 2)) * (rule.step * math.sqrt(large)))
        moved = math.sqrt(np.mean((new.astype(np.float64) - old) ** 2))
        if tensor >= rule.masked or step == 0:
            moved *= rule.fine if tensor >= rule.masked else rule.step * math.sqrt(large)
            step = np.float32(2.0 ** math.floor(math.log2(moved))) if moved > 0 else np.float32(1)
        elif 0 < 2 * moved < step:
            step /= np.float32(2.0 ** math.ceil(math.log2(step / (2 * moved))))
        for a, b in zip(old, new, strict=True):
            steps = np.rint((np.float64(b) - np.float64(a)) / np.float64(step))
            read.append(np.float32(steps) * step + a)
    return np.array(read, np.float32)


def read(vector: Float32Array, reference: Float32Array, rule: LatticeRule = RULE) -> Float32Array:
    return Lattice.rounded(vector, reference, rule).values(reference, rule.sizes)


@pytest.mark.parametrize("share", [0.125, 0.25, 1.0])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("far", [1.0, 0.1, 1e-3])
def test_it_equals_the_plain_form(share: float, zero: bool, far: float) -> None:
    rule = LatticeRule(SIZES, 4, share, share / 8)
    reference = np.zeros_like(FIRST) if zero else FIRST
    moved = reference + (MOVED - FIRST) * np.float32(far)
    assert np.array_equal(read(moved, reference, rule), plain_grid(moved, reference, rule))


def test_large_tensors_have_larger_steps_and_all_together_the_same_squares() -> None:
    alike = np.full(FIRST.size, 0.02, np.float32)
    sizes, rule = [300, 5000, 1], LatticeRule([300, 5000, 1], 3, 0.25, 1 / 32)
    steps = Lattice.rounded(alike[:5301] * 3, alike[:5301], rule).steps.astype(np.float64)
    assert steps**2 / sum(steps**2) == pytest.approx(np.array(sizes) / sum(sizes), rel=1e-6)
    assert math.sqrt(np.mean(steps**2)) == pytest.approx(0.25 * 0.02)


@pytest.mark.parametrize("far", [1e-1, 1e-2, 1e-3])
def test_what_moves_little_arrives(far: float) -> None:
    """A model that was trained before and is trained further: steps follow what has moved, in powers of two."""
    first = np.full(5341, 1, np.float32)
    moves = (MOVED - FIRST)[:5341] * np.float32(far)
    rule = LatticeRule([300, 5000, 1, 40], 3, 0.5, 1 / 32)
    grid = Lattice.rounded(first + moves, first, rule)
    for tensor, part in ((0, slice(0, 300)), (1, slice(300, 5300))):
        moved, error = ((first + moves - first)[part], (grid.values(first, rule.sizes) - first - moves)[part])
        assert 0.02 < np.std(error) / np.std(moved) < 0.61
        full = rule.step * math.sqrt(rule.sizes[tensor] * 3 / 5301)
        assert math.frexp(full / grid.steps[tensor])[0] == pytest.approx(0.5, rel=1e-6)


def test_what_is_far_away_arrives_too() -> None:
    far = MOVED.copy()
    far[[0, 17, 5000]] = (40.0, -3e5, 1e4)
    assert np.abs(read(far, FIRST) - far)[:5301].max() <= 0.02
    assert np.array_equal(read(far, FIRST), plain_grid(far, FIRST, RULE))


def test_what_has_not_moved_is_exact() -> None:
    assert np.array_equal(read(FIRST, FIRST), FIRST)
    assert not read(np.zeros_like(FIRST), np.zeros_like(FIRST)).any()


def test_dense_part_has_fine_steps_that_rarely_change() -> None:
    dense = slice(5301, None)
    moves = np.abs(MOVED - FIRST)[dense]
    assert np.abs(read(MOVED, FIRST) - MOVED)[dense].max() <= np.sqrt(np.mean(moves[:40] ** 2)) / 32
    steps = {
        float(Lattice.rounded(FIRST + (MOVED - FIRST) * grown, FIRST, RULE).steps[4]) for grown in np.arange(1, 4, 0.1)
    }
    assert len(steps) <= 3
    assert all(math.frexp(step)[0] == 0.5 for step in steps)


@pytest.mark.parametrize("far", [3, 127, 128, -32767, 1e6])
def test_what_is_kept_comes_back(far: float) -> None:
    moved = MOVED.copy()
    grid = Lattice.rounded(moved, FIRST, RULE)
    moved[5] = FIRST[5] + far * float(grid.steps[0])
    grid = Lattice.rounded(moved, FIRST, RULE)
    kept = grid.kept()
    back = Lattice.from_kept(kept)
    assert np.array_equal(back.counts, grid.counts)
    assert back.counts.dtype == np.int32
    assert np.array_equal(back.steps, grid.steps)
    assert back.checksum == grid.checksum
    bytes_a_count = (sum(map(len, kept.values())) - 4 * len(SIZES)) / sum(SIZES)
    assert bytes_a_count == (4 if abs(far) > 40_000 else 2 if abs(far) > 127 or np.abs(grid.counts).max() > 127 else 1)


def test_checksum_is_of_all_of_it() -> None:
    grid = Lattice.rounded(MOVED, FIRST, RULE)
    counts, steps = grid.counts.copy(), grid.steps.copy()
    counts[-1] += 1
    steps[0] *= 2
    assert len({grid.checksum, Lattice(grid.steps, counts).checksum, Lattice(steps, grid.counts).checksum}) == 3


def test_values_that_are_not_finite_are_refused() -> None:
    grid = Lattice(np.full(len(SIZES), 1e38, np.float32), np.full(sum(SIZES), 5, np.int32))
    with pytest.raises(PayloadError, match="grid holds values that are not finite"):
        grid.values(FIRST, SIZES)
