"""The levels of EDEN as bytes.

plain form         b bits per level, as many as number the levels, the lowest bit first
coded form         symbols of one lane, with the probabilities of the quantizer's cells, which both sides know
coded form, lanes  the same in several lanes; written if the plain form has 64 KiB or more
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.wire.body import CODED, LANED, Body, Coder
from fedmrn_app.wire.entropy import LANES, SymbolReader, categorical, encode_symbols, lanes_of
from fedmrn_app.wire.primitives import pack_bits, packed_size, unpack_bits


def encode_eden_levels(levels: NDArray[np.uint8], cells: NDArray[np.int64], coder: Coder) -> Body:
    """Write levels of shape (d,) in the shorter form, or in the plain form for `packed`.

    Args:
        levels: numbers of levels, from 0 on.
        cells: the likelihoods of the 2 to 256 levels in any unit, integers below 2^53.
        coder: which form.
    """
    most = max_eden_bytes(levels.size, cells.size)
    if coder != "packed":
        lanes = lanes_of(most)
        coded = encode_symbols([(levels, categorical(cells.astype(np.float64)))], lanes)
        if len(coded) < most:  # readers refuse coded bodies that are not shorter
            return Body(coded, CODED if lanes == 1 else LANED)
    bits = np.empty((levels.size, _bits_of(cells.size)), np.bool_)
    for place in range(bits.shape[1]):
        bits[:, place] = (levels >> place) & 1
    return Body(pack_bits(bits.reshape(-1)))


def decode_eden_levels(body: Body, count: int, cells: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the `count` levels of `body`, uint8 (count,).

    Raises:
        PayloadError: the body is not what `encode_eden_levels` returns for `count` levels.
    """
    width = _bits_of(cells.size)
    if body.form in (CODED, LANED):
        if len(body) >= max_eden_bytes(count, cells.size):
            raise PayloadError(
                f"body codes {count} levels of {width} bits in {len(body)} bytes", code="length", value=len(body)
            )
        reader = SymbolReader(body.data, 1 if body.form == CODED else LANES)
        coded = reader.read(categorical(cells.astype(np.float64)), count).astype(np.uint8)
        reader.check_end("coded body")
        return coded
    body.must_be_plain()
    bits = unpack_bits(body.data, count * width).reshape(count, -1)
    levels = bits[:, 0].copy()
    for place in range(1, width):
        levels |= bits[:, place] << place
    if count and (largest := int(levels.max())) >= cells.size:
        raise PayloadError(f"body has level {largest} of {cells.size}", code="range", value=largest)
    return levels


def max_eden_bytes(count: int, levels: int) -> int:
    """Return the largest number of bytes that `count` symbols of so many levels take."""
    return packed_size(count * _bits_of(levels))


def _bits_of(levels: int) -> int:
    return (levels - 1).bit_length()
