"""Bases of subspaces are told from weights, however these are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedmrn_app.plugin.orthonormal import is_orthonormal

_DRAW = np.random.default_rng(0)


def _basis(rows: int, columns: int) -> Any:
    return np.linalg.qr(_DRAW.normal(0, 1, (rows, columns)))[0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(300, 1), (2, 2), (300, 7), (64, 64), (9000, 3)])
def test_bases_are_orthonormal(shape: tuple[int, int], dtype: Any) -> None:
    basis = _basis(*shape).astype(dtype)
    assert is_orthonormal(basis)
    assert is_orthonormal(basis.T)


@pytest.mark.parametrize("shape", [(300, 1), (300, 100), (64, 64), (192, 64), (100, 300)])
def test_weights_are_not(shape: tuple[int, int]) -> None:
    """Drawn as PyTorch's linear layers are, whose columns have about unit norm where there are three rows for each."""
    bound = 1 / np.sqrt(shape[1])
    for _ in range(20):
        assert not is_orthonormal(_DRAW.uniform(-bound, bound, shape).astype(np.float32))


def test_all_pairs_of_columns_count() -> None:
    basis = _basis(300, 7)
    basis[:, 6] = basis[:, 5]
    assert not is_orthonormal(basis)
    assert not is_orthonormal(1.001 * _basis(300, 7))


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (4,), (2, 2, 2)])
def test_other_arrays_are_not(shape: tuple[int, ...]) -> None:
    assert not is_orthonormal(np.ones(shape))
