"""The arrays of a message, read without copies and written without Flower's, held to what Flower does."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedmrn_app.plugin.arrays import to_record, to_values


@pytest.mark.parametrize(
    "value",
    [
        np.ones((), np.float32), np.zeros((0, 3), np.float32), np.arange(6).reshape(2, 3), np.ones(3, np.float16),
        np.array([True, False]), np.ones(2, np.complex64), np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(3, dtype=">f4"), np.array(["ab", "c"]), np.array(["2020-01-01"], "M8[D]"),
        np.arange(12.0).reshape(3, 4)[:, ::2],
    ],
)  # fmt: skip
def test_arrays_of_any_kind_are_read_as_flower_reads_them(value: NDArray[Any]) -> None:
    array = Array(value)
    (read,) = to_values(ArrayRecord({"x": array})).values()
    assert np.array_equal(read, array.numpy())
    assert (read.dtype, read.shape) == (value.dtype, value.shape)
    (made,) = to_record({"x": value}).values()
    plain = Array(np.asarray(value, order="C"))
    assert (made.data, made.dtype, tuple(made.shape)) == (plain.data, plain.dtype, tuple(plain.shape))


def test_a_damaged_array_has_flowers_error() -> None:
    array = Array(np.ones(3, np.float32))
    array.data = array.data[:-1]
    with pytest.raises(ValueError, match="expected 12 bytes got 11"):
        to_values(ArrayRecord({"x": array}))
