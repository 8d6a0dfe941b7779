"""Sparse vectors: the positions of the nonzero values as a mask, and the values.

    bytes   4          any              4 k
    field   k, uint32  mask of d bits   values, float32, in ascending order of position

The mask is in the form of the body, plain or coded, see `wire/masks.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array
from fedmrn_app.wire.body import Body, Coder
from fedmrn_app.wire.mask_model import SideInfoSource
from fedmrn_app.wire.masks import pack_mask, unpack_mask
from fedmrn_app.wire.primitives import pack_floats, packed_size, unpack_floats, wrong_length

_HEAD = struct.Struct("<I")


def pack_sparse(vector: Float32Array, side: Callable[[], SideInfoSource], coder: Coder) -> Body:
    """Encode the nonzero elements of a vector of shape (d,); `side` returns the side information of their mask."""
    present = vector != 0
    values = vector[present]
    positions = pack_mask(present, side, coder)
    return Body(_HEAD.pack(values.size) + bytes(positions.data) + pack_floats(values), positions.form)


def unpack_sparse(body: Body, count: int, side: Callable[[], SideInfoSource]) -> Float32Array:
    """Return the vector of shape (count,) that `pack_sparse` encoded.

    Raises:
        PayloadError: as `read_sparse`.
    """
    places, values = read_sparse(body, count, side)
    vector = np.zeros(count, np.float32)
    vector[places] = values
    return vector


def read_sparse(body: Body, count: int, side: Callable[[], SideInfoSource]) -> tuple[NDArray[np.intp], Float32Array]:
    """Return the positions of the k nonzero elements of a vector (count,), ascending, and their values, float32 (k,).

    Raises:
        PayloadError: the body is malformed, or announces another number of values than it has.
    """
    view = memoryview(body.data)
    if len(view) < _HEAD.size:
        raise wrong_length("body", view, f"less than its head of {_HEAD.size}")
    (k,) = _HEAD.unpack_from(view)
    end = len(view) - 4 * k
    if k > count or end < _HEAD.size:
        raise PayloadError(f"body has {len(view)} bytes and announces {k} of {count} values", code="count", value=k)
    values = unpack_floats(view[end:], k)
    places = np.flatnonzero(unpack_mask(Body(view[_HEAD.size : end], body.form), count, side))
    if places.size != k:
        raise PayloadError(f"body announces {k} values and has {places.size} positions", code="count", value=k)
    return places, values


def max_sparse_bytes(count: int, kept: int) -> int:
    """Return the largest number of bytes that `kept` values among `count` take."""
    return _HEAD.size + packed_size(count) + 4 * kept
