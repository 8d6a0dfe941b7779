"""Vectors of at most 256 different values: the values once, and for each element its index, entropy-coded.

    bytes   1        1                   4 n       4 n                  rest
    field   0 or 2   n - 1               values    counts of elements   indices, see
            palette  number of values    float32   uint32               `wire/entropy.py`

or, where that is shorter, a byte 1 and all elements as float32. With 0 the indices are in one lane, with 2 in several.
"""

from __future__ import annotations

import numpy as np

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array
from fedmrn_app.wire.primitives import pack_floats, unpack_floats

PALETTE, PLAIN, LANED = 0, 1, 2
MAX_VALUES = 256


def pack_palette(vector: Float32Array) -> bytes:
    """Encode a vector of shape (d,), d >= 1, without loss."""
    plain = bytes([PLAIN]) + pack_floats(vector)
    values, indices, counts = np.unique(vector, return_inverse=True, return_counts=True)
    if values.size > MAX_VALUES:
        return plain
    from fedmrn_app.wire.entropy import encode_runs, lanes_of  # Numba takes most of what an import loads

    lanes = lanes_of(-(counts * np.log2(counts / vector.size)).sum() / 8)
    coded = encode_runs([indices], [counts.tolist()], lanes)
    kind = PALETTE if lanes == 1 else LANED
    head = bytes([kind, values.size - 1]) + pack_floats(values) + counts.astype("<u4").tobytes()
    return min(plain, head + coded, key=len)


def unpack_palette(body: bytes, count: int) -> Float32Array:
    """Return the vector of shape (count,) that `pack_palette` encoded.

    Raises:
        PayloadError: `body` is malformed, or its vector has another shape.
    """
    if len(body) >= 1 and body[0] == PLAIN:
        return unpack_floats(body[1:], count)
    size = body[1] + 1 if len(body) >= 2 else 0
    if len(body) < 2 or body[0] not in (PALETTE, LANED) or len(body) < 2 + 8 * size:
        raise PayloadError(f"body of {len(body)} bytes holds no palette", code="malformed", value=len(body))
    values = unpack_floats(body[2 : 2 + 4 * size], size)
    counts = np.frombuffer(body[2 + 4 * size : 2 + 8 * size], "<u4").astype(np.int64)
    if counts.sum() != count:
        raise PayloadError(
            f"palette counts {counts.sum()} elements, expected {count}", code="count", value=int(counts.sum())
        )
    from fedmrn_app.wire.entropy import LANES, decode_runs  # Numba takes most of what an import loads

    lanes = 1 if body[0] == PALETTE else LANES
    (indices,) = decode_runs(body[2 + 8 * size :], [counts.tolist()], lanes)
    return values[indices]
