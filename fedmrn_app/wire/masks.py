"""Masks in less than one bit per weight: both sides find the same probability of each bit, and code it accordingly.

`mask_model.py` sorts the bits by their probabilities into levels; the bits of a level are coded eight at a time by
asymmetric numeral systems.

Layout: the model's coefficients as float16, CRC-32 of the plain packed bits (uint32), the coder's words.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from functools import cache

import constriction
import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.wire.bits import pack_bits, packed_size, unpack_bits
from fedmrn_app.wire.body import CODED, Body, Coder
from fedmrn_app.wire.entropy import categorical, read_words, write_words
from fedmrn_app.wire.mask_model import (
    LEVELS,
    SideInformation,
    fit,
    levels_of,
    parts_of,
    predictors_of,
    probability_at,
    term_count,
)

_CHUNK = 1 << 17  # bits that are sorted by level at a time
_CHECK = struct.Struct("<I")


def pack_mask(bits: NDArray[np.bool_], side: Callable[[], SideInformation], coder: Coder) -> Body:
    """Write bits of shape (d,) in the smaller form, coded or plainly packed; `packed` is always the latter."""
    plain = Body(pack_bits(bits))
    return plain if coder == "packed" else min(Body(code_mask(bits, side()), CODED), plain, key=len)


def unpack_mask(body: Body, count: int, side: Callable[[], SideInformation]) -> NDArray[np.bool_]:
    """Return the `count` bits that `body` stands for; `side` is asked for only where they are coded.

    Raises:
        PayloadError: anything in it is wrong.
    """
    if body.form == CODED:
        return decode_mask(body.data, side())
    body.must_be_plain()
    return unpack_bits(body.data, count).view(np.bool_)


def code_mask(bits: NDArray[np.bool_], side: SideInformation) -> bytes:
    """Encode bits of shape (d,)."""
    if side.flipped is not None:
        bits = bits ^ side.flipped
    coefficients = []
    batches = []
    for parts in parts_of(side.layout):
        levels = []
        for part in parts:
            a, predictors = predictors_of(part, side, bits)
            coefficients.append(fit(part.of(bits), a, predictors))
            levels.append(levels_of(coefficients[-1], a, predictors))
        batches.append((np.concatenate([part.of(bits) for part in parts]), np.concatenate(levels)))
    coder = constriction.stream.stack.AnsCoder()
    for batch, level in reversed(batches):
        for start in reversed(range(0, batch.size, _CHUNK)):
            _code_levels(coder, batch[start : start + _CHUNK], level[start : start + _CHUNK])
    check = _CHECK.pack(zlib.crc32(pack_bits(bits)))
    return np.concatenate(coefficients).tobytes() + check + write_words(coder)


def decode_mask(body: bytes | memoryview, side: SideInformation) -> NDArray[np.bool_]:
    """Return the bits of shape (d,) that `code_mask` encoded with the same side.

    Raises:
        PayloadError: `body` is not smaller than the plain form, or not what `code_mask` makes.
    """
    count = side.size.size
    phases = list(parts_of(side.layout))
    terms = [term_count(part, side) for parts in phases for part in parts]
    head = 2 * sum(terms)
    if not head + _CHECK.size <= len(body) < packed_size(count):
        raise PayloadError(f"body codes a mask of {count} bits in {len(body)} bytes")
    view = memoryview(body)
    coefficients = np.frombuffer(view[:head], "<f2")
    if not np.isfinite(coefficients).all():
        raise PayloadError("body holds coefficients that are not finite")
    fitted = iter(np.split(coefficients, np.cumsum(terms)[:-1]))
    coder = read_words(view[head + _CHECK.size :])
    bits = np.zeros(count, np.bool_)
    for parts in phases:
        level = np.concatenate([levels_of(next(fitted), *predictors_of(part, side, bits)) for part in parts])
        batch = np.empty(level.size, np.bool_)
        for start in range(0, batch.size, _CHUNK):
            _decode_levels(coder, batch[start : start + _CHUNK], level[start : start + _CHUNK])
        for part, piece in zip(parts, np.split(batch, np.cumsum([part.count for part in parts])[:-1]), strict=True):
            part.view(bits)[:] = piece.reshape(part.runs, -1)
    if not coder.is_empty():
        raise PayloadError("coded body goes on after its last symbol")
    if zlib.crc32(pack_bits(bits)) != _CHECK.unpack_from(view, head)[0]:
        raise PayloadError(
            "coded mask reads as another one here: the client started from other first weights, or computes "
            "otherwise; uplink.coder=packed does without what must agree"
        )
    if side.flipped is not None:
        bits ^= side.flipped
    return bits


def _code_levels(coder: constriction.stream.stack.AnsCoder, bits: NDArray[np.bool_], levels: NDArray[np.uint8]) -> None:
    """Encode bits, the last level first, for decoding turns the order round."""
    order, ends = _sort(levels)
    by_level = bits[order]
    for level in reversed(range(LEVELS)):
        run = by_level[ends[level] : ends[level + 1]]
        symbols = np.packbits(run, bitorder="little").astype(np.int32)
        whole, rest = divmod(run.size, 8)
        if rest:
            coder.encode_reverse(symbols[whole:], _model(level, rest))
        if whole:
            coder.encode_reverse(symbols[:whole], _model(level, 8))


def _decode_levels(
    coder: constriction.stream.stack.AnsCoder, bits: NDArray[np.bool_], levels: NDArray[np.uint8]
) -> None:
    """Fill `bits`."""
    order, ends = _sort(levels)
    by_level = np.empty_like(bits)
    for level in range(LEVELS):
        run = by_level[ends[level] : ends[level + 1]]
        whole, rest = divmod(run.size, 8)
        if whole:
            symbols = coder.decode(_model(level, 8), whole).astype(np.uint8)
            run[: 8 * whole] = np.unpackbits(symbols, bitorder="little")
        if rest:
            symbol = coder.decode(_model(level, rest), 1).astype(np.uint8)
            run[8 * whole :] = np.unpackbits(symbol, count=rest, bitorder="little")
    bits[order] = by_level


def _sort(levels: NDArray[np.uint8]) -> tuple[NDArray[np.intp], list[int]]:
    """The order that sorts `levels`, and where each level's elements start and the last one's end."""
    ends = np.concatenate([[0], np.cumsum(np.bincount(levels, minlength=LEVELS))])
    return np.argsort(levels, kind="stable"), ends.tolist()


@cache
def _model(level: int, width: int) -> object:
    """The distribution of `width` independent bits of a level, the first one lowest."""
    one = probability_at((level + 0.5) / LEVELS)
    probabilities = np.ones(1)
    for _ in range(width):
        probabilities = np.concatenate([probabilities * (1 - one), probabilities * one])
    return categorical(probabilities)
