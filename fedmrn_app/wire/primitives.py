"""Bits and float32 values as bytes.

bits      eight elements per byte, the lowest bit first; the last byte is padded with zero bits
float32   four bytes per element, little-endian
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array, blocks


def packed_size(count: int) -> int:
    """Return the number of bytes that hold `count` bits."""
    return -(-count // 8)


def pack_bits(bits: NDArray[np.bool_]) -> bytes:
    """Pack a boolean vector of shape (n,) into `packed_size(n)` bytes."""
    return np.packbits(bits, bitorder="little").tobytes()


def packed_bits(body: bytes | memoryview, count: int) -> NDArray[np.uint8]:
    """Return the checked bytes of `body`, uint8 (`packed_size(count)`,), without a copy.

    Raises:
        PayloadError: the length of `body` is not that of `count` bits, or padding bits are not zero.
    """
    if len(body) != packed_size(count):
        raise wrong_length("body", body, f"where {count} bits take {packed_size(count)}")
    if count % 8 and body[-1] >> count % 8:
        raise PayloadError("padding bits of the body are not zero", code="padding")
    return np.frombuffer(body, np.uint8)


def unpack_bits(body: bytes | memoryview, count: int) -> NDArray[np.uint8]:
    """Return the `count` bits of `body` as a uint8 vector of zeros and ones.

    Raises:
        PayloadError: the length of `body` is not that of `count` bits, or padding bits are not zero.
    """
    return np.unpackbits(packed_bits(body, count), count=count, bitorder="little")


def pack_floats(values: Float32Array) -> bytes:
    """Return the little-endian float32 bytes of a vector."""
    return floats_as_bytes(values).tobytes()


def floats_as_bytes(values: Float32Array) -> memoryview:
    """Return the little-endian float32 bytes of a vector without a copy, where the machine has them so."""
    return np.ascontiguousarray(values, "<f4").data.cast("B")


def unpack_floats(body: bytes | memoryview, count: int, what: str = "body") -> Float32Array:
    """Return the `count` values of `body`, which errors call `what`.

    Raises:
        PayloadError: the length of `body` is not that of `count` values, or values are not finite.
    """
    if len(body) != 4 * count:
        raise wrong_length(what, body, f"where {count} float32 values take {4 * count}")
    return finite(np.frombuffer(body, "<f4").astype(np.float32, copy=False), what)


def unpack_scales(body: bytes | memoryview, count: int) -> tuple[Float32Array, memoryview]:
    """Return the `count` non-negative float32 scales at the front of `body`, and the rest of it.

    Raises:
        PayloadError: `body` is shorter, or a scale is negative or not finite.
    """
    view = memoryview(body)
    if len(view) < 4 * count:
        raise wrong_length("body", body, f"less than its {count} scales")
    scales = unpack_floats(view[: 4 * count], count)
    if (scales < 0).any():
        raise PayloadError("body holds a negative scale", code="negative")
    return scales, view[4 * count :]


def finite(values: NDArray[Any], what: str) -> NDArray[Any]:
    """Return the values, which an error calls `what`.

    Raises:
        PayloadError: values are not finite.
    """
    if not all_finite(values):
        raise PayloadError(f"{what} holds values that are not finite", code="not-finite")
    return values


def all_finite(values: NDArray[Any]) -> bool:
    """Return whether all values are finite."""
    flat = values.reshape(-1)
    return all(np.isfinite(flat[part]).all() for part in blocks(flat.size))


def wrong_length(what: str, body: bytes | memoryview, expected: str) -> PayloadError:
    """Return the error that `what` has another number of bytes than expected."""
    return PayloadError(f"{what} has {len(body)} bytes {expected}", code="length", value=len(body))
