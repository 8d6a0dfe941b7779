"""The arrays of a message, read without copies and written without Flower's, held to what Flower does."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.plugin.arrays import to_record, to_values
from fedmrn_app.plugin.replies import check_plain


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


def written(header: bytes, data: bytes = b"") -> bytes:
    """Return bytes in the format of np.save, version 1."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize(
    "data",
    [
        b"", b"x", Array(np.ones(3, np.float32)).data[:-1],
        written(b"{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000,), }\n", bytes(8)),
        written(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", bytes(8)),
        written(b"((((\n"), written(b"{[]: 1}\n"), written(b"{'descr': 'no dtype'}\n"),
    ],
)  # fmt: skip
def test_a_damaged_array_is_refused_by_name(data: bytes) -> None:
    array = Array(np.ones(3, np.float32))
    array.data = data
    record = ArrayRecord({"layer.weight": array})
    with pytest.raises(PayloadError, match=r"layer\.weight: its bytes are no array \("):
        to_values(record)
    with pytest.raises(PayloadError, match=r"layer\.weight: its bytes are no array \("):
        check_plain(RecordDict({"arrays": record}), {"arrays": {"layer.weight": np.ones(3, np.float32)}})
