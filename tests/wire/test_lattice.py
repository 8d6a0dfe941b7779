"""Vectors on a lattice: they equal the plain form element by element, and kept lattices are restored."""

import math

import numpy as np
import pytest

from fedmrn_app.layout import Float32Array, slices
from fedmrn_app.wire.lattice import Lattice, LatticeRule, Tensors
from fedmrn_app.wire.sums import pairwise_square_sum
from tests.wire.refusals import refusal

SIZES = [300, 5000, 1, 0, 40, 7]  # the last two are dense
RULE = LatticeRule(SIZES, 4, 0.25, 1 / 32)
RANDOM = np.random.default_rng(3)
FIRST = (RANDOM.standard_normal(sum(SIZES)) * 0.02).astype(np.float32)
MOVED = (FIRST + RANDOM.standard_normal(sum(SIZES)) * 0.01).astype(np.float32)
DENSE = slice(5301, None)


def plain_grid(vector: Float32Array, reference: Float32Array, rule: LatticeRule) -> Float32Array:
    """Return each tensor's whole steps, computed one element at a time."""
    read = []
    for tensor, (size, part) in enumerate(zip(rule.sizes, slices(rule.sizes), strict=True)):
        if size == 0:
            continue
        old, new = reference[part], vector[part]
        relative = rule.step * math.sqrt(size / np.mean(rule.sizes[: rule.masked]))
        step = np.float32(np.sqrt(np.mean(old.astype(np.float64) ** 2)) * relative)
        moved = math.sqrt(np.mean((new.astype(np.float64) - old) ** 2))
        if tensor >= rule.masked or step == 0:
            moved *= rule.fine if tensor >= rule.masked else relative
            step = np.float32(2.0 ** math.floor(math.log2(moved))) if moved > 0 else np.float32(1)
        elif 0 < 2 * moved < step:
            step /= np.float32(2.0 ** math.ceil(math.log2(step / (2 * moved))))
        for a, b in zip(old, new, strict=True):
            steps = np.rint((np.float64(b) - np.float64(a)) / np.float64(step))
            read.append(np.float32(steps) * step + a)
    return np.array(read, np.float32)


def tensors(vector: Float32Array, rule: LatticeRule) -> Tensors:
    return [vector[part] for part in slices(rule.sizes)]


def rounded(vector: Float32Array, reference: Float32Array, rule: LatticeRule = RULE) -> Lattice:
    return Lattice.rounded(tensors(vector, rule), tensors(reference, rule), rule)


def read(vector: Float32Array, reference: Float32Array, rule: LatticeRule = RULE) -> Float32Array:
    return rounded(vector, reference, rule).values(tensors(reference, rule))


@pytest.mark.parametrize("count", [0, 5, 1 << 17, (1 << 17) + 1, 700_003])
def test_a_sum_in_parts_is_that_of_numpy_to_the_last_bit(count: int) -> None:
    x = np.random.default_rng(count).standard_normal(count)
    assert pairwise_square_sum(lambda part: x[part], count) == np.square(x).sum()


def test_tensors_that_are_rounded_in_parts_equal_the_plain_form() -> None:
    rule = LatticeRule([70_001, 5], 1, 0.25, 1 / 32)
    reference = (np.random.default_rng(1).standard_normal(70_006) * 0.02).astype(np.float32)
    vector = reference * np.float32(1.3)
    lattice, plain = rounded(vector, reference, rule), plain_grid(vector, reference, rule)
    assert np.array_equal(lattice.values(tensors(reference, rule)), plain)
    moved = lattice.moved(rule.sizes)
    whole = moved(0, slice(None))
    assert np.array_equal(moved(0, slice(40_000, None)), whole[40_000:])
    assert np.array_equal(whole + reference[:70_001], plain[:70_001])


@pytest.mark.parametrize("step", [0.125, 0.25, 1.0])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("distance", [1.0, 0.1, 1e-3])
def test_it_equals_the_plain_form(step: float, zero: bool, distance: float) -> None:
    rule = LatticeRule(SIZES, 4, step, step / 8)
    reference = np.zeros_like(FIRST) if zero else FIRST
    moved = reference + (MOVED - FIRST) * np.float32(distance)
    assert np.array_equal(read(moved, reference, rule), plain_grid(moved, reference, rule))


def test_squared_steps_are_in_proportion_to_the_tensors_sizes() -> None:
    reference = np.full(5301, 0.02, np.float32)
    sizes = [300, 5000, 1]
    steps = rounded(reference * 3, reference, LatticeRule(sizes, 3, 0.25, 1 / 32)).steps.astype(np.float64)
    assert steps**2 / sum(steps**2) == pytest.approx(np.array(sizes) / sum(sizes), rel=1e-6)
    assert math.sqrt(np.mean(steps**2)) == pytest.approx(0.25 * 0.02)


@pytest.mark.parametrize("distance", [1e-1, 1e-2, 1e-3])
def test_small_moves_of_a_pretrained_model_are_sent(distance: float) -> None:
    """Steps follow the size of the differences, in powers of two."""
    first = np.full(5341, 1, np.float32)
    moves = (MOVED - FIRST)[:5341] * np.float32(distance)
    rule = LatticeRule([300, 5000, 1, 40], 3, 0.5, 1 / 32)
    lattice = rounded(first + moves, first, rule)
    for tensor, part in ((0, slice(0, 300)), (1, slice(300, 5300))):
        moved, error = ((first + moves - first)[part], (lattice.values(tensors(first, rule)) - first - moves)[part])
        assert 0.02 < np.std(error) / np.std(moved) < 0.61
        full = rule.step * math.sqrt(rule.sizes[tensor] * 3 / 5301)
        assert math.frexp(full / lattice.steps[tensor])[0] == pytest.approx(0.5, rel=1e-6)


def test_large_moves_are_sent_and_weights_that_have_not_moved_are_exact() -> None:
    distant = MOVED.copy()
    distant[[0, 17, 5000]] = (40.0, -3e5, 1e4)
    assert np.abs(read(distant, FIRST) - distant)[:5301].max() <= 0.02
    assert np.array_equal(read(distant, FIRST), plain_grid(distant, FIRST, RULE))
    assert np.array_equal(read(FIRST, FIRST), FIRST)
    assert not read(np.zeros_like(FIRST), np.zeros_like(FIRST)).any()


def test_dense_part_has_fine_steps_that_rarely_change() -> None:
    moves = np.abs(MOVED - FIRST)[DENSE]
    assert np.abs(read(MOVED, FIRST) - MOVED)[DENSE].max() <= np.sqrt(np.mean(moves[:40] ** 2)) / 32
    lattices = (rounded(FIRST + (MOVED - FIRST) * factor, FIRST, RULE) for factor in np.arange(1, 4, 0.1))
    steps = {float(lattice.steps[4]) for lattice in lattices}
    assert len(steps) <= 3
    assert all(math.frexp(step)[0] == 0.5 for step in steps)


@pytest.mark.parametrize("distance", [3, 127, 128, -32767, 1e6])
def test_kept_lattices_are_restored(distance: float) -> None:
    moved = MOVED.copy()
    moved[5] = FIRST[5] + distance * float(rounded(moved, FIRST, RULE).steps[0])
    lattice = rounded(moved, FIRST, RULE)
    kept, largest = lattice.kept(), np.abs(lattice.counts).max()
    assert len(kept) == 2
    assert ("int8" in kept, "int16" in kept) == (largest <= 127, 127 < largest <= 32767)
    restored = Lattice.from_kept(kept)
    assert np.array_equal(restored.counts, lattice.counts)
    assert str(restored.counts.dtype) in kept
    assert np.array_equal(restored.steps, lattice.steps)
    assert restored.checksum == lattice.checksum


def test_checksum_covers_steps_and_counts() -> None:
    lattice = rounded(MOVED, FIRST, RULE)
    counts, steps = lattice.counts.copy(), lattice.steps.copy()
    counts[-1] += 1
    steps[0] *= 2
    assert (
        len({lattice.checksum, Lattice(lattice.steps, counts).checksum, Lattice(steps, lattice.counts).checksum}) == 3
    )


def test_values_that_are_not_finite_are_refused() -> None:
    lattice = Lattice(np.full(len(SIZES), 1e38, np.float32), np.full(sum(SIZES), 5, np.int32))
    assert refusal(lattice.values, tensors(FIRST, RULE)) == "not-finite"
