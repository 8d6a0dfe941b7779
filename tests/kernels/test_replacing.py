"""Arrays are replaced where they hold what was shown, bit for bit, and stay as they are otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from fedmrn_app.kernels.replacing import Compared

SHAPES: dict[str, tuple[int, ...]] = {"vector": (3001,), "empty": (0,), "kernels": (5, 3, 4), "no kernels": (0, 3, 4)}


def turned(array: np.ndarray) -> np.ndarray:
    """The array in the order of buffers, which have the inputs of kernels last."""
    return array.copy() if array.ndim == 1 else np.ascontiguousarray(array.transpose(0, 2, 1))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_equal_arrays_are_replaced_by_what_pytorch_computes(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    held, w, u = (random.normal(0, 1, shape).astype(np.float32) for _ in range(3))
    shown = turned(held)
    compared = Compared(held, shown, turned(w), turned(u))
    assert compared.equal()
    assert compared.replace_equal(np.float32(0.25))
    np.testing.assert_array_equal(held, w + np.float32(0.25) * u)


@pytest.mark.parametrize("shape", [(3001,), (5, 3, 4)])
def test_one_changed_bit_anywhere_keeps_all_values(shape: tuple[int, ...]) -> None:
    first = np.random.default_rng(1).normal(0, 1, shape).astype(np.float32)
    shown, zeros = turned(first), turned(np.zeros_like(first))
    for place in {0, 1, first.size // 2, first.size - 2, first.size - 1}:
        held = first.copy()
        held.reshape(-1).view(np.uint32)[place] ^= 1
        changed = held.copy()
        compared = Compared(held, shown, zeros, zeros)
        assert not compared.equal()
        assert not compared.replace_equal(np.float32(1))
        np.testing.assert_array_equal(held, changed)
