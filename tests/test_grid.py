"""The grid on the way down: near enough, small enough, the same bits on both sides, and nothing hostile gets in."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array
from fedmrn_app.wire.grid import pack_grid, unpack_grid

SIZES = [300, 5000, 1]
RANDOM = np.random.default_rng(3)
FIRST = (RANDOM.standard_normal(sum(SIZES)) * 0.02).astype(np.float32)
MOVED = (FIRST + RANDOM.standard_normal(sum(SIZES)) * 0.01).astype(np.float32)


def plain_grid(vector: Float32Array, reference: Float32Array, sizes: list[int], share: float) -> Float32Array:
    """The plain reference: each tensor's whole steps, one element at a time."""
    read = []
    start = 0
    for size in sizes:
        part = reference[start : start + size]
        step = np.float32(np.sqrt(np.mean(part.astype(np.float64) ** 2)) * share)
        for old, new in zip(part, vector[start : start + size], strict=True):
            steps = np.rint((np.float64(new) - np.float64(old)) / np.float64(step))
            read.append(np.float32(steps) * step + old)
        start += size
    return np.array(read, np.float32)


@pytest.mark.parametrize("share", [0.125, 0.25, 1.0])
def test_it_equals_the_plain_form(share: float) -> None:
    read = unpack_grid(pack_grid(MOVED, FIRST, SIZES, share), FIRST, SIZES)
    assert np.array_equal(read, plain_grid(MOVED, FIRST, SIZES, share))


def test_size_is_the_entropy_of_the_steps() -> None:
    data = pack_grid(MOVED[300:5300], FIRST[300:5300], [5000], 0.25)
    step = np.float32(np.sqrt(np.mean(FIRST[300:5300].astype(np.float64) ** 2)) * 0.25)
    _, counts = np.unique(np.rint((MOVED - FIRST)[300:5300].astype(np.float64) / step), return_counts=True)
    shares = counts / counts.sum()
    entropy = -(shares * np.log2(shares)).sum()
    assert 8 * len(data) / 5000 < 1.02 * entropy + 8 * (9 + counts.size + 8) / 5000


def test_what_is_far_away_arrives_too() -> None:
    far = MOVED.copy()
    far[[0, 17, 5000]] = (40.0, -3e5, 1e4)
    read = unpack_grid(pack_grid(far, FIRST, SIZES, 0.25), FIRST, SIZES)
    assert np.abs(read - far).max() <= 0.02
    assert np.array_equal(read, plain_grid(far, FIRST, SIZES, 0.25))


def test_vectors_of_zeros() -> None:
    zero = np.zeros(sum(SIZES), np.float32)
    assert not unpack_grid(pack_grid(zero, zero, SIZES, 0.25), zero, SIZES).any()
    read = unpack_grid(pack_grid(MOVED, zero, SIZES, 0.25), zero, SIZES)  # steps of the differences
    assert np.abs(read - MOVED).max() <= 0.25 * np.abs(MOVED).max()
    assert np.array_equal(unpack_grid(pack_grid(FIRST, FIRST, SIZES, 0.25), FIRST, SIZES), FIRST)
    assert len(pack_grid(FIRST, FIRST, SIZES, 0.25)) < 50


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_hostile_grids_are_refused_or_finite(data: st.DataObject) -> None:
    real = bytearray(pack_grid(MOVED, FIRST, SIZES, 0.25))
    for _ in range(data.draw(st.integers(1, 4))):
        real[data.draw(st.integers(0, len(real) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(real[: data.draw(st.integers(0, len(real)))]) + data.draw(st.binary(max_size=9))
    try:
        read = unpack_grid(changed, FIRST, SIZES)
    except PayloadError:
        return
    assert read.shape == FIRST.shape
    assert np.isfinite(read).all()
