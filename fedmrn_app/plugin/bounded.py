"""Long vectors that are no biases, such as histograms: each value has its own error, at most 1/64 of its change.

    change of a value   float32, rounded to a sign, 8 bits of exponent and 5 of mantissa
    all changes         their high bytes, then their low bytes, as zlib packs them

A step for the whole vector, as in `wire/dense.py`, would lose all values that are small beside the largest one.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import slices
from fedmrn_app.plugin.arrays import Values, in_dtype

RELATIVE_ERROR = 2.0**-6  # of the change of a value
_DROPPED = 18  # bits of a float32


def pack_bounded(names: Sequence[str], base: Values, trained: Values) -> bytes:
    """Return the changes of vectors.

    Args:
        names: of the vectors.
        base: the arrays that the changes are from.
        trained: the arrays of the reply.
    """
    if not names:
        return b""
    changes = [np.subtract(trained[name], base[name], dtype=np.float64).reshape(-1) for name in names]
    bits = np.concatenate(changes).astype(np.float32).view(np.uint32)
    short = ((bits + np.uint32(1 << _DROPPED - 1)) >> np.uint32(_DROPPED)).astype("<u2")
    planes = short.view(np.uint8).reshape(-1, 2).T[::-1]
    return zlib.compress(planes.tobytes(), 6)


def unpack_bounded(data: bytes, names: Sequence[str], base: Values) -> dict[str, NDArray[np.generic]]:
    """Return vectors by name, in the types of `base`, the inverse of `pack_bounded`.

    Raises:
        PayloadError: `data` is malformed, has another length, or holds values that are not finite.
    """
    sizes = [base[name].size for name in names]
    count = sum(sizes)
    if not names and not data:
        return {}
    try:
        reader = zlib.decompressobj()
        planes = reader.decompress(data, 2 * count + 1)
    except zlib.error as error:
        raise PayloadError(f"reply has malformed vectors: {error}", code="bounded") from error
    if len(planes) != 2 * count or not reader.eof:
        reason = f"reply has vectors of other lengths than the {count} values that were expected"
        raise PayloadError(reason, code="length", value=len(planes))
    short = np.frombuffer(planes, np.uint8).reshape(2, count)[::-1].T.copy().view("<u2").reshape(-1)
    changes = (short.astype(np.uint32) << np.uint32(_DROPPED)).view(np.float32)
    if not np.isfinite(changes).all():
        raise PayloadError("reply has vectors with values that are not finite", code="not-finite")
    found: dict[str, NDArray[np.generic]] = {}
    for name, place in zip(names, slices(sizes), strict=True):
        before: NDArray[Any] = base[name]
        after = before.astype(np.float64) + changes[place].astype(np.float64).reshape(before.shape)
        found[name] = in_dtype(after, before.dtype)
    return found
