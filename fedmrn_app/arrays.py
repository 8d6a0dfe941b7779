"""Flower's arrays from and to NumPy's without the copies that its own conversions make."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray

_STYPE = "numpy.ndarray"  # Flower's name for arrays that are written as np.save does


def to_array(vector: NDArray[Any]) -> Array:
    """Write a contiguous array as `Array(vector)` does, byte for byte."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(vector))
    data = b"".join([header.getvalue(), vector.data])
    return Array(dtype=str(vector.dtype), shape=vector.shape, stype=_STYPE, data=data)


def from_array(array: Array) -> NDArray[Any]:
    """View the values of an array as `array.numpy()` copies them, read-only.

    Raises:
        ValueError: it does not hold such an array.
    """
    head = io.BytesIO(array.data[:4096])
    if array.stype != _STYPE or np.lib.format.read_magic(head) != (1, 0):
        raise ValueError(f"an array came as {array.stype}, expected {_STYPE}")
    shape, _, dtype = np.lib.format.read_array_header_1_0(head)
    return np.frombuffer(array.data, dtype, offset=head.tell()).reshape(shape)
