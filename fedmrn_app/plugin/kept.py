"""What a code must not move in matrices: rows that came back as they were sent, and zeros.

The error of a code would give values to rows that nobody trained, such as those of an embedding whose tokens a client
lacks, and to the zeros of sparse weights.

    flags   a byte per tensor: 1 for rows that are as they were sent, 2 for zeros
    bits    of each tensor with rows, a bit per row; of each tensor with zeros, a bit per element

All is packed by zlib.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.plugin.arrays import Parts, Values

ROWS, ZEROS = 1, 2  # flags
_LEAST_ZEROS = 1 / 8  # of the elements of a tensor, below which zeros are chance

Bits = NDArray[np.bool_]


def matrices(parts: Parts, values: Values) -> list[str]:
    """Return the names of the tensors of two or more dimensions that are sent with an error."""
    return [name for name in (*parts.coded, *parts.dense) if values[name].ndim >= 2]


def pack_kept(names: Sequence[str], base: Values, trained: Values) -> bytes:
    """Return which rows and zeros of tensors are kept; empty where there are none.

    Args:
        names: of the tensors, as `matrices` returns them.
        base: the arrays that their updates are from.
        trained: the arrays of the reply.
    """
    flags, bits = bytearray(), []
    for name in names:
        after: NDArray[Any] = trained[name]
        rows = _same_rows(base[name], after)
        zeros = after.size - np.count_nonzero(after) >= _LEAST_ZEROS * after.size
        flags.append(ROWS * bool(rows.any()) + ZEROS * bool(zeros))
        bits += [rows] if rows.any() else []
        bits += [after.reshape(-1) == 0] if zeros else []
    return zlib.compress(bytes(flags) + np.packbits(np.concatenate(bits)).tobytes()) if bits else b""


def _same_rows(before: NDArray[Any], after: NDArray[Any]) -> Bits:
    """Return which rows of arrays are the same, bool (rows,)."""
    rows: Bits = np.ones(len(after), np.bool_)
    if after.size:
        first: Any = (slice(None), *(0,) * (after.ndim - 1))
        rows = after[first] == before[first]  # tells nearly always that no row is
        rows[rows] = (after[rows] == before[rows]).all(tuple(range(1, after.ndim)))
    return rows


def put_back(data: bytes, names: Sequence[str], base: Values, found: Mapping[str, NDArray[Any]]) -> None:
    """Put rows and zeros back into decoded tensors, in place.

    Args:
        data: of `pack_kept`.
        names: of the tensors.
        base: the arrays that their updates are from.
        found: the decoded arrays.

    Raises:
        PayloadError: the data are malformed, or of other tensors.
    """
    if not data:
        return
    most = len(names) + math.ceil(sum(found[name].size + len(found[name]) for name in names) / 8)
    reader = zlib.decompressobj()
    try:
        content = reader.decompress(data, most + 1)
    except zlib.error as error:
        raise PayloadError(f"reply has malformed rows and zeros: {error}", code="kept") from error
    flags = content[: len(names)]
    counts = [
        len(found[name]) * bool(flag & ROWS) + found[name].size * bool(flag & ZEROS)
        for name, flag in zip(names, flags, strict=False)
    ]
    expected = len(names) + math.ceil(sum(counts) / 8)
    if not reader.eof or any(flag > ROWS | ZEROS for flag in flags) or len(content) != expected:
        reason = f"reply has {len(content)} bytes of rows and zeros, which are not those of its tensors"
        raise PayloadError(reason, code="length", value=len(content))
    bits = np.unpackbits(np.frombuffer(content, np.uint8, offset=len(names)), count=sum(counts)).view(np.bool_)
    for name, flag, end in zip(names, flags, np.cumsum(counts), strict=True):
        array, start = found[name], len(found[name]) * bool(flag & ROWS)
        own = bits[end - start - array.size * bool(flag & ZEROS) : end]
        if flag & ROWS:
            array[own[:start]] = base[name][own[:start]]
        if flag & ZEROS:
            array[own[start:].reshape(array.shape)] = 0
