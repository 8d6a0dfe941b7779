"""Arrays go to Flower and back as its own conversions do it."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedmrn_app.arrays import from_array, to_array


@pytest.mark.parametrize(
    "vector",
    [
        np.arange(5, dtype=np.float32),
        np.zeros(0, np.float32),
        np.arange(100_000, dtype=np.uint16),
        np.arange(6, dtype=np.float16).reshape(2, 3),
    ],
)
def test_arrays_are_those_of_flower(vector: np.ndarray) -> None:
    ours, theirs = to_array(vector), Array(vector)
    assert ours.data == theirs.data
    assert (ours.dtype, ours.shape, ours.stype) == (theirs.dtype, theirs.shape, theirs.stype)
    assert ArrayRecord({"x": ours}).object_id == ArrayRecord({"x": theirs}).object_id
    back = from_array(theirs)
    assert back.dtype == vector.dtype
    assert np.array_equal(back, vector)
    assert back.base is not None  # a view
    assert not back.flags.writeable


def test_other_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match=r"came as torch\.tensor, expected numpy\.ndarray"):
        from_array(Array(dtype="float32", shape=(1,), stype="torch.tensor", data=b"123"))
    with pytest.raises(ValueError, match="magic string"):
        from_array(Array(dtype="float32", shape=(1,), stype="numpy.ndarray", data=b"1" * 200))
