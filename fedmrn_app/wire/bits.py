"""Vectors of bits as bytes, eight elements a byte, lowest bit first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError


def packed_size(count: int) -> int:
    """Number of bytes that hold `count` bits."""
    return -(-count // 8)


def pack_bits(bits: NDArray[np.bool_]) -> bytes:
    """Pack a boolean vector of shape (n,) into `packed_size(n)` bytes; the last byte is filled up with zero bits."""
    return np.packbits(bits, bitorder="little").tobytes()


def packed_bits(body: bytes | memoryview, count: int) -> NDArray[np.uint8]:
    """Return the checked bytes of `body`, no copy, uint8 (`packed_size(count)`,).

    Raises:
        PayloadError: `body` has another length than `count` bits take, or padding bits that are not zero.
    """
    if len(body) != packed_size(count):
        raise PayloadError(f"body has {len(body)} bytes where {count} bits take {packed_size(count)}")
    if count % 8 and body[-1] >> count % 8:
        raise PayloadError("padding bits of the body are not zero")
    return np.frombuffer(body, np.uint8)


def unpack_bits(body: bytes | memoryview, count: int) -> NDArray[np.uint8]:
    """Return the `count` bits of `body` as a uint8 vector of zeros and ones.

    Raises:
        PayloadError: as `packed_bits`.
    """
    return np.unpackbits(packed_bits(body, count), count=count, bitorder="little")
