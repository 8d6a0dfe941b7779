"""Vectors of float32 as bytes, and the reading of a body piece by piece."""

from __future__ import annotations

import numpy as np

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array


def pack_floats(values: Float32Array) -> bytes:
    """Return the little-endian float32 bytes of a vector."""
    return np.ascontiguousarray(values, "<f4").tobytes()


def unpack_floats(body: bytes | memoryview, count: int, what: str = "body") -> Float32Array:
    """Return the `count` values that `body` consists of; errors call it `what`.

    Raises:
        PayloadError: another length, or values that are not finite.
    """
    if len(body) != 4 * count:
        raise PayloadError(f"{what} has {len(body)} bytes where {count} float32 values take {4 * count}")
    values = np.frombuffer(body, "<f4").astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        raise PayloadError(f"{what} holds values that are not finite")
    return values


def unpack_scales(body: bytes | memoryview, count: int) -> tuple[Float32Array, memoryview]:
    """Take `count` non-negative float32 scales off the front of `body`; return them and the rest.

    Raises:
        PayloadError: `body` is shorter, or a scale is negative or not finite.
    """
    view = memoryview(body)
    if len(view) < 4 * count:
        raise PayloadError(f"body has {len(view)} bytes, less than its {count} scales")
    scales = unpack_floats(view[: 4 * count], count)
    if (scales < 0).any():
        raise PayloadError("body holds a negative scale")
    return scales, view[4 * count :]
