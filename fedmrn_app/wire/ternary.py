"""Vectors of -1, 0 and 1 as bytes.

plain form   five trits per byte in base 3, the first one lowest; the last byte is padded with zero digits
coded form   bytes   4          packed_size(k)   rest
             field   k, uint32  signs, bits      coded mask of the k nonzero trits, see `wire/masks.py`
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.wire.body import CODED, Body, Coder
from fedmrn_app.wire.mask_model import SideInfoSource
from fedmrn_app.wire.masks import code_mask, decode_mask
from fedmrn_app.wire.primitives import pack_bits, packed_size, unpack_bits, wrong_length

_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)


def pack_trits(trits: NDArray[np.int8], side: Callable[[], SideInfoSource], coder: Coder) -> Body:
    """Write trits of shape (d,) in the shorter form, or in the plain form for `packed`."""
    digits = np.zeros((-(-trits.size // 5), 5), np.uint8)
    digits.reshape(-1)[: trits.size] = trits + 1
    plain = Body((digits @ _POWERS).astype(np.uint8).tobytes())
    if coder == "packed":
        return plain
    present = trits != 0
    signs = pack_bits(trits[present] > 0)
    mask = code_mask(present, side())
    if len(mask) >= packed_size(trits.size):  # readers refuse such a mask
        return plain
    count = int(np.count_nonzero(present)).to_bytes(4, "little")
    return min(plain, Body(count + signs + mask, CODED), key=len)  # readers refuse coded bodies that are not shorter


def unpack_trits(body: Body, count: int, side: Callable[[], SideInfoSource]) -> NDArray[np.int8]:
    """Return the trits of shape (count,) that `pack_trits` wrote.

    Raises:
        PayloadError: the body is malformed, or announces another number of nonzero trits than it has.
    """
    view = memoryview(body.data)
    if body.form != CODED:
        body.must_be_plain()
        return _unpack_base3(view, count)
    if not 4 <= len(view) < max_trit_bytes(count):
        raise PayloadError(f"body codes {count} trits in {len(view)} bytes", code="length", value=len(view))
    nonzero = int.from_bytes(view[:4], "little")
    end = 4 + packed_size(nonzero)
    if nonzero > count or end > len(view):
        raise PayloadError(
            f"body has {len(view)} bytes and announces {nonzero} of {count} signs", code="count", value=nonzero
        )
    present = decode_mask(view[end:], side())
    if np.count_nonzero(present) != nonzero:
        raise PayloadError(
            f"body announces {nonzero} signs and has {np.count_nonzero(present)} positions", code="count", value=nonzero
        )
    trits = np.zeros(count, np.int8)
    trits[present] = 2 * unpack_bits(view[4:end], nonzero).view(np.int8) - 1
    return trits


def max_trit_bytes(count: int) -> int:
    """Return the largest number of bytes that `count` trits take, 1.6 bits each."""
    return -(-count // 5)


def _unpack_base3(view: memoryview, count: int) -> NDArray[np.int8]:
    if len(view) != max_trit_bytes(count):
        raise wrong_length("body", view, f"where {count} trits take {max_trit_bytes(count)}")
    packed = np.frombuffer(view, np.uint8)
    if (packed >= 3**5).any():
        raise PayloadError("body holds bytes that are not five trits", code="range")
    digits = (packed[:, None] // _POWERS % 3).reshape(-1)
    if digits[count:].any():
        raise PayloadError("padding trits of the body are not zero", code="padding")
    return digits[:count].view(np.int8) - np.int8(1)
