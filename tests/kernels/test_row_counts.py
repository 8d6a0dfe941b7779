"""The compiled sums over rows are those of the plain form."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmrn_app.kernels.row_counts import RowCounts, row_bits, row_costs, row_counts
from fedmrn_app.layout import Float32Array


def plain_row_counts(values: Float32Array, smallest: float, step: float) -> RowCounts:
    sizes = np.abs(values)
    kept = sizes > np.float32(smallest)
    lost = np.square(np.where(kept, np.float32(0), sizes), dtype=np.float64)
    octaves = np.log2(np.clip(sizes * np.float32(min(1 / step, 1e38)), 1, 1 << 14), dtype=np.float64)
    sums = (np.where(kept, sizes, 0).sum(axis=1, dtype=np.float64), lost.sum(axis=1), octaves.sum(axis=1))
    return RowCounts(kept.sum(axis=1).astype(np.float64), *sums)


@pytest.mark.parametrize("step", [1e-30, 1e-4, 0.3, 1.0, 5.0, 1e3])
@pytest.mark.parametrize("shape", [(1, 1), (5, 77), (64, 1000), (0, 4)])
def test_sums_over_rows(shape: tuple[int, int], step: float) -> None:
    values = np.random.default_rng(3).standard_t(3, size=shape).astype(np.float32)
    values[:, ::5] = 0
    found, plain = row_counts(values, 0.64 * step, step), plain_row_counts(values, 0.64 * step, step)
    assert np.array_equal(found.kept, plain.kept)
    assert found.sizes == pytest.approx(plain.sizes, rel=1e-12)
    assert found.lost == pytest.approx(plain.lost, rel=1e-12)
    assert found.octaves == pytest.approx(plain.octaves, rel=1e-5)


def test_matrices_that_are_not_contiguous() -> None:
    values = np.random.default_rng(4).normal(size=(30, 20)).astype(np.float32)
    for found, plain in zip(row_counts(values.T, 0.64, 1.0), plain_row_counts(values.T, 0.64, 1.0), strict=True):
        assert found == pytest.approx(plain, rel=1e-5)


def entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    p = np.clip(p, 1e-9, 1 - 1e-9)
    found: NDArray[np.float64] = -(p * np.log2(p) + (1 - p) * np.log2(1 - p))
    return found


@pytest.mark.parametrize("step", [1e-4, 0.3, 1.0, 5.0, 1e3])
@pytest.mark.parametrize("shape", [(1, 1), (5, 77), (64, 1000)])
def test_costs_and_bits_of_rows(shape: tuple[int, int], step: float) -> None:
    values = np.random.default_rng(4).standard_t(3, size=shape).astype(np.float32)
    values[:, ::5] = 0
    counts, width = plain_row_counts(values, 0.64 * step, step), shape[1]
    zeros = entropy(counts.kept / width) * width
    bits = zeros + 1.5 * counts.kept + 1.2 * counts.octaves
    costs = counts.lost / step**2 + 0.07 * counts.kept + 0.11 * bits
    assert row_costs(values, 0.64 * step, step, 0.11, 1.5, 1.2, 0.07) == pytest.approx(costs, rel=1e-6)
    means = np.maximum(counts.sizes / step / np.maximum(counts.kept, 1), 1)
    whole = float((zeros + counts.kept * (1 + means * entropy(1 / means))).sum())
    assert row_bits(values, 0.64 * step, step) == pytest.approx(whole, rel=1e-9)
