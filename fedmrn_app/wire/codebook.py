"""Vectors of few different values: the values once, and for each element its number among them, entropy-coded.

Layout: one byte with the number of values less one, or nothing but float32 elements where that is smaller (told apart
by the first byte: 0 a palette follows, 1 plain elements); values as float32, their counts (uint32), the coded numbers.
"""

from __future__ import annotations

import numpy as np

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array
from fedmrn_app.wire.entropy import decode_runs, encode_runs
from fedmrn_app.wire.values import pack_floats, unpack_floats

PALETTE, PLAIN = 0, 1
MAX_VALUES = 256


def pack_palette(vector: Float32Array) -> bytes:
    """Encode a vector of shape (d,), d >= 1, without loss."""
    plain = bytes([PLAIN]) + pack_floats(vector)
    values, numbers, counts = np.unique(vector, return_inverse=True, return_counts=True)
    if values.size > MAX_VALUES:
        return plain
    coded = encode_runs([numbers], [counts.tolist()])
    head = bytes([PALETTE, values.size - 1]) + pack_floats(values) + counts.astype("<u4").tobytes()
    return min(plain, head + coded, key=len)


def unpack_palette(body: bytes, count: int) -> Float32Array:
    """Return the vector of shape (count,) that `body` stands for.

    Raises:
        PayloadError: anything in it is wrong.
    """
    if len(body) >= 1 and body[0] == PLAIN:
        return unpack_floats(body[1:], count)
    size = body[1] + 1 if len(body) >= 2 else 0
    if len(body) < 2 or body[0] != PALETTE or len(body) < 2 + 8 * size:
        raise PayloadError(f"body of {len(body)} bytes holds no palette")
    values = unpack_floats(body[2 : 2 + 4 * size], size)
    counts = np.frombuffer(body[2 + 4 * size : 2 + 8 * size], "<u4").astype(np.int64)
    if counts.sum() != count:
        raise PayloadError(f"palette counts {counts.sum()} elements, expected {count}")
    (numbers,) = decode_runs(body[2 + 8 * size :], [counts.tolist()])
    return values[numbers]
