"""Levels of a quantiser as bytes: a few bits each, or coded with the probabilities that both sides know.

The bits of a level stand lowest first. The coded form is the words of constriction's AnsCoder and nothing else.
"""

from __future__ import annotations

import constriction
import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.wire.bits import pack_bits, packed_size, unpack_bits
from fedmrn_app.wire.body import CODED, Body, Coder
from fedmrn_app.wire.entropy import categorical, read_words, write_words


def pack_levels(levels: NDArray[np.uint8], cells: NDArray[np.int64], coder: Coder) -> Body:
    """Write levels of shape (d,) in the smaller form; `packed` is always the plain one.

    Args:
        levels: from 0 to 2^b - 1.
        cells: how probable each of the 2^b levels is, in any unit; whole numbers below 2^53.
        coder: which form.
    """
    bits = np.empty((levels.size, _bits_of(cells)), np.bool_)
    for place in range(bits.shape[1]):
        bits[:, place] = (levels >> place) & 1
    plain = Body(pack_bits(bits.reshape(-1)))
    if coder == "packed":
        return plain
    stream = constriction.stream.stack.AnsCoder()
    stream.encode_reverse(levels.astype(np.int32), _model(cells))
    return min(plain, Body(write_words(stream), CODED), key=len)  # a coded body is only read where it is shorter


def unpack_levels(body: Body, count: int, cells: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the `count` levels that `body` stands for, uint8 (count,).

    Raises:
        PayloadError: anything in it is wrong.
    """
    if body.form == CODED:
        return _decode(body.data, count, cells)
    body.must_be_plain()
    bits = unpack_bits(body.data, count * _bits_of(cells)).reshape(count, -1)
    levels = bits[:, 0].copy()
    for place in range(1, bits.shape[1]):
        levels |= bits[:, place] << place
    return levels


def max_level_bytes(count: int, bits: int) -> int:
    """The most bytes that `count` levels of so many bits take."""
    return packed_size(count * bits)


def _decode(data: bytes | memoryview, count: int, cells: NDArray[np.int64]) -> NDArray[np.uint8]:
    if len(data) >= max_level_bytes(count, _bits_of(cells)):
        raise PayloadError(f"body codes {count} levels of {_bits_of(cells)} bits in {len(data)} bytes")
    stream = read_words(data)
    levels: NDArray[np.uint8] = stream.decode(_model(cells), count).astype(np.uint8)
    if not stream.is_empty():
        raise PayloadError("coded body goes on after its last level")
    return levels


def _bits_of(cells: NDArray[np.int64]) -> int:
    return cells.size.bit_length() - 1


def _model(cells: NDArray[np.int64]) -> object:
    return categorical(cells.astype(np.float64))
