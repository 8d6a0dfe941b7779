"""Masks in less than one bit per weight: both sides find the same probability of each bit, and code it accordingly.

`mask_model.py` finds the shares of the bits, and `kernels/mask_rans.py` codes them.

Layout: the model's coefficients as float16, CRC-32 of the plain packed bits (uint32), the lanes' states (uint32), the
coder's words (uint16).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.kernels import mask_rans
from fedmrn_app.kernels.mask_rans_plain import LOWEST
from fedmrn_app.wire.body import CODED, Body, Coder
from fedmrn_app.wire.mask_model import Past, Side, all_parts, fit, shares_of, term_count
from fedmrn_app.wire.primitives import pack_bits, packed_size, unpack_bits

_CHECK = struct.Struct("<I")


def pack_mask(bits: NDArray[np.bool_], side: Callable[[], Side], coder: Coder) -> Body:
    """Write bits of shape (d,) in the smaller form, coded or plainly packed; `packed` is always the latter."""
    plain = Body(pack_bits(bits))
    # of two as long the first is taken: coded ones are only read where they are shorter
    return plain if coder == "packed" else min(plain, Body(code_mask(bits, side()), CODED), key=len)


def unpack_mask(body: Body, count: int, side: Callable[[], Side]) -> NDArray[np.bool_]:
    """Return the `count` bits that `body` stands for; `side` is asked for only where they are coded.

    Raises:
        PayloadError: anything in it is wrong.
    """
    if body.form == CODED:
        return decode_mask(body.data, side())
    body.must_be_plain()
    return unpack_bits(body.data, count).view(np.bool_)


def code_mask(bits: NDArray[np.bool_], side: Side) -> bytes:
    """Encode bits of shape (d,)."""
    octets = bits.view(np.uint8)
    past = Past(mask_rans)
    coefficients, coded = [], []
    for part in all_parts(side.layout):
        runs = slice(0, part.runs)
        evidence, hints = side.evidence(part, runs), past.hints(part)
        piece = part.view(octets)
        piece = np.ascontiguousarray(piece) if evidence.flipped is None else piece ^ evidence.flipped.view(np.uint8)
        coefficients.append(fit(part, evidence, piece, hints))
        coded.append((piece.reshape(-1), shares_of(evidence, coefficients[-1], hints, runs, mask_rans)))
        past.note(part, runs, evidence, piece)
    states = np.full(mask_rans.lanes_of(bits.size), LOWEST, np.uint32)
    words = np.empty(bits.size, np.uint16)
    start = words.size
    for symbols, shares in reversed(coded):
        start = mask_rans.encode(symbols, shares, states, words, start)
    check = _CHECK.pack(zlib.crc32(pack_bits(bits)))
    stream = states.astype("<u4").tobytes() + words[start:].astype("<u2").tobytes()
    return np.concatenate(coefficients).tobytes() + check + stream


def decode_mask(body: bytes | memoryview, side: Side) -> NDArray[np.bool_]:
    """Return the bits of shape (d,) that `code_mask` encoded with the same side.

    Raises:
        PayloadError: `body` is not smaller than the plain form, or not what `code_mask` makes.
    """
    return _decode(body, side)[0]


def decode_packed(body: bytes | memoryview, side: Side) -> NDArray[np.uint8]:
    """As `decode_mask`, but eight bits a byte, as `pack_bits` makes them."""
    return np.frombuffer(_decode(body, side)[1], np.uint8)


def _decode(body: bytes | memoryview, side: Side) -> tuple[NDArray[np.bool_], bytes]:
    """The bits, and the same packed."""
    count = side.layout.count
    parts = list(all_parts(side.layout))
    terms = [term_count(part, side.trending) for part in parts]
    head = 2 * sum(terms)
    lanes = mask_rans.lanes_of(count)
    stream = head + _CHECK.size + 4 * lanes
    if not stream <= len(body) < packed_size(count):
        raise PayloadError(f"body codes a mask of {count} bits in {len(body)} bytes")
    if (len(body) - stream) % 2:
        raise PayloadError(f"coded body has {len(body) - stream} bytes of words, not a multiple of 2")
    view = memoryview(body)
    fitted = np.split(np.frombuffer(view[:head], "<f2"), np.cumsum(terms)[:-1])
    if not all(np.isfinite(terms).all() and terms[0] >= 0 for terms in fitted):
        raise PayloadError("body holds coefficients that are not finite, or sizes bent the wrong way")
    states = np.frombuffer(view[stream - 4 * lanes : stream], "<u4").astype(np.uint32)
    words = np.frombuffer(view[stream:], "<u2").astype(np.uint16)
    if (states < LOWEST).any():
        raise PayloadError("coded body starts from a state that is none")
    octets = np.empty(count, np.uint8)
    past = Past(mask_rans)
    place = 0
    for part, coefficients in zip(parts, fitted, strict=True):
        hints = past.hints(part)
        for runs in part.pieces():
            evidence = side.evidence(part, runs)
            shares = shares_of(evidence, coefficients, hints, runs, mask_rans)
            symbols = np.empty(shares.size, np.uint8)
            place = mask_rans.decode(shares, states, words, place, symbols)
            if place < 0:
                raise PayloadError("coded body ends before its last symbol")
            piece = symbols.reshape(evidence.size.shape)
            past.note(part, runs, evidence, piece)
            part.view(octets)[runs] = piece if evidence.flipped is None else piece ^ evidence.flipped.view(np.uint8)
    if place < words.size or (states != LOWEST).any():
        raise PayloadError("coded body goes on after its last symbol")
    bits = octets.view(np.bool_)
    packed = pack_bits(bits)
    if zlib.crc32(packed) != _CHECK.unpack_from(view, head)[0]:
        raise PayloadError(
            "coded mask reads as another one here: the client started from other first weights, or computes "
            "otherwise; uplink.coder=packed does without what must agree"
        )
    return bits, packed
