"""The tensors that are sent byte for byte, packed by zlib where that makes them much shorter.

Counts, masks of 0 and 1 and other arrays of few different values become several times shorter. Weights in float32
hardly do, which a sample tells.
"""

from __future__ import annotations

import zlib

from fedmrn_app.errors import PayloadError

_SAMPLE = 1 << 16  # bytes that tell whether packing is worth its time
_WORTH = 0.75  # of the length, below which it is


def pack_exact(data: bytes) -> bytes | None:
    """Return the packed bytes; None if they would not be much shorter."""
    middle = max(0, len(data) - _SAMPLE) // 2
    sample = data[middle : middle + _SAMPLE]
    if not data or len(zlib.compress(sample, 1)) > _WORTH * len(sample):
        return None
    packed = zlib.compress(data, 1)
    return packed if len(packed) < _WORTH * len(data) else None


def unpack_exact(packed: bytes, size: int) -> bytes:
    """Return the `size` bytes that `pack_exact` packed.

    Raises:
        PayloadError: `packed` is malformed or holds another number of bytes.
    """
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(packed, size + 1)  # a lying reply takes no more memory
    except zlib.error as error:
        raise PayloadError(f"reply has malformed exact tensors: {error}", code="exact") from error
    if len(data) != size or not reader.eof:
        reason = f"reply has packed tensors of another length than the {size} bytes that were expected"
        raise PayloadError(reason, code="length", value=len(data))
    return data
