"""Comparing arrays part by part, held to whole arrays in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import DTypeLike, NDArray

from fedmrn_app.errors import RunError
from fedmrn_app.plugin.arrays import check_finite
from fedmrn_app.plugin.comparison import find_tied, is_difference, is_same, is_unmoved
from fedmrn_app.plugin.self_check import shares_that_arrive

SIZES = (0, 1, 7, (1 << 15) - 1, 1 << 15, (1 << 15) + 1, 100_000)
is_difference(*[np.ones(1 << 16, np.float32)] * 2)  # compiles the loop, which takes longer than a test may


def drawn(size: int, dtype: DTypeLike = np.float32, seed: int = 0) -> NDArray[Any]:
    values: NDArray[Any] = np.random.default_rng(seed).normal(size=size).astype(dtype)
    return values


@given(
    size=st.sampled_from(SIZES),
    place=st.floats(0, 1, exclude_max=True),
    value=st.sampled_from([0.5, np.nan, np.inf, -0.0]),
    both=st.booleans(),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_arrays_are_the_same_as_for_numpy(size: int, place: float, value: float, both: bool, dtype: DTypeLike) -> None:
    before = drawn(size, dtype)
    after = before.copy()
    after[int(place * size) : int(place * size) + 1] = value
    if both:
        before[int(place * size) : int(place * size) + 1] = value
    assert is_same(before, after) == np.array_equal(before, after, equal_nan=True)
    assert is_unmoved(before, after) == np.array_equal(before, after, equal_nan=True)
    assert is_same(before.reshape(-1, 1), after) == (np.array_equal(before.reshape(-1, 1), after))


@pytest.mark.parametrize("size", SIZES[1:])
def test_a_tensor_that_a_bfloat16_model_held_is_unmoved(size: int) -> None:
    before = drawn(size)
    held = torch.from_numpy(before.copy()).bfloat16().float().numpy()
    assert is_unmoved(before, held)
    assert is_same(before, held) == np.array_equal(before, held)
    held[-1] *= 1.01
    assert not is_unmoved(before, held)


@given(
    size=st.sampled_from(SIZES),
    share=st.floats(-2, 2),
    noise=st.floats(0, 2),
    dtype=st.sampled_from(["f2", "f4", "f8"]),
)
def test_differences_are_told_as_from_whole_arrays(size: int, share: float, noise: float, dtype: str) -> None:
    before = drawn(size, dtype)
    after = (share * before + noise * drawn(size, dtype, 1)).astype(dtype)
    x, y = before.astype(np.float64), after.astype(np.float64)
    length, difference = 4 * np.square(y).sum(), np.square(y - x).sum()
    if abs(length - difference) > 1e-9 * difference:
        assert is_difference(before, after) == (length < difference)


def test_values_that_overflow_when_they_are_squared_are_compared() -> None:
    large = np.full(70_000, 1e30, np.float32)
    assert is_difference(large, large * np.float32(0.1))
    assert not is_difference(large, large * np.float32(0.9))


def test_the_first_of_equal_tensors_is_found() -> None:
    values = {name: drawn(50_000, seed=seed) for name, seed in (("a", 1), ("b", 2), ("c", 2), ("d", 3))}
    assert find_tied("c", values, ["a", "b", "c"]) == "b"
    assert find_tied("d", values, ["a", "b", "c"]) is None


@given(size=st.sampled_from(SIZES[1:]), dtype=st.sampled_from(["f4", "f8"]))
def test_shares_that_arrive_are_those_of_whole_arrays(size: int, dtype: str) -> None:
    before, after, arrived = (drawn(size, dtype, seed) for seed in range(3))
    update, moved = np.subtract(after, before, dtype="f8"), np.subtract(arrived, before, dtype="f8")
    found = shares_that_arrive(["x"], {"x": before}, {"x": after}, {"x": arrived})
    assert found["x"] == pytest.approx(float(moved @ update) / float(update @ update), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_found_at_any_place(value: float) -> None:
    sent = {"mask": np.array([-np.inf, 0.0], np.float32), "x": drawn(100_000)}
    check_finite(sent, sent)
    trained = {**sent, "x": sent["x"].copy()}
    trained["x"][99_999] = value
    with pytest.raises(RunError, match="x: came back with 1 of 100000 values that are NaN or infinite"):
        check_finite(sent, trained)
    with pytest.raises(RunError, match="mask: was sent with 1 of 2 values"):
        check_finite(sent, {"mask": np.zeros(2, np.float32), "x": sent["x"]})
