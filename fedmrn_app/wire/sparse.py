"""Sparse vectors: where the values are, and what they are.

Layout: the number k of values (uint32), how positions are coded (one byte), positions, k float32 values in ascending
order of position. Positions are a plain bitmap (0) or an entropy-coded one (1), whichever is smaller; coding the gaps
between them would take as much as the coded bitmap, for both have the entropy of k positions among d.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.noise import Float32Array
from fedmrn_app.wire.bits import pack_bits, packed_size, unpack_bits
from fedmrn_app.wire.entropy import decode_runs, encode_runs
from fedmrn_app.wire.values import pack_floats, unpack_floats

_HEAD = struct.Struct("<IB")
BITMAP, CODED = 0, 1


def pack_sparse(vector: Float32Array) -> bytes:
    """Encode the nonzero elements of a vector of shape (d,)."""
    present = vector != 0
    values = vector[present]
    plain = pack_bits(present)
    coded = encode_runs([present], [(present.size - values.size, values.size)])
    kind, positions = (CODED, coded) if len(coded) < len(plain) else (BITMAP, plain)
    return _HEAD.pack(values.size, kind) + positions + pack_floats(values)


def unpack_sparse(body: bytes | memoryview, count: int) -> Float32Array:
    """Return the vector of shape (count,) that `body` stands for.

    Raises:
        PayloadError: anything in it is wrong.
    """
    view = memoryview(body)
    if len(view) < _HEAD.size:
        raise PayloadError(f"body has {len(view)} bytes, less than its head of {_HEAD.size}")
    k, kind = _HEAD.unpack_from(view)
    end = len(view) - 4 * k
    if k > count or end < _HEAD.size:
        raise PayloadError(f"body has {len(view)} bytes and announces {k} of {count} values")
    positions = view[_HEAD.size : end]
    if kind == BITMAP:
        present: NDArray[np.integer] = unpack_bits(positions, count)
    elif kind == CODED and len(positions) < packed_size(count):
        (present,) = decode_runs(positions, [(count - k, k)])
    else:
        raise PayloadError(f"body codes its positions in {len(positions)} bytes by the unknown way {kind}")
    vector = np.zeros(count, np.float32)
    where = np.flatnonzero(present)
    if where.size != k:
        raise PayloadError(f"body announces {k} values and has {where.size} positions")
    vector[where] = unpack_floats(view[end:], k)
    return vector


def max_sparse_bytes(count: int, kept: int) -> int:
    """The most bytes that `kept` values among `count` take: the coded bitmap's entropy and rounding, or the bitmap."""
    p = kept / count
    entropy = 0.0 if p in (0.0, 1.0) else -p * np.log2(p) - (1 - p) * np.log2(1 - p)
    return _HEAD.size + min(packed_size(count), int(count * entropy * 1.001 / 8) + 16) + 4 * kept
