"""Masks in less than one bit per weight: both sides compute the probability of each bit, and code it accordingly.

`mask_model.py` predicts the probabilities, and `kernels/mask_rans.py` codes the bits with them.

Layout: the coefficients of the model (float16), the CRC-32 of the plain packed bits (uint32), the states of the coder's
lanes (uint32), the words of the coder (uint16).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.kernels import mask_rans
from fedmrn_app.kernels.mask_rans import LOWEST, Evidence
from fedmrn_app.wire.body import CODED, Body, Coder
from fedmrn_app.wire.mask_model import BitPredictor, Part, Piece, SideInfoSource, all_parts
from fedmrn_app.wire.primitives import pack_bits, packed_size, unpack_bits

_CHECKSUM = struct.Struct("<I")
_KEPT = 4  # pieces of a part


def pack_mask(bits: NDArray[np.bool_], side_info: Callable[[], SideInfoSource], coder: Coder) -> Body:
    """Return bits of shape (d,) in the smaller form, coded or packed; `coder="packed"` always packs them."""
    plain = Body(pack_bits(bits))
    # of two forms of one length `min` returns the plain one, for a coded body is only read where it is shorter
    return plain if coder == "packed" else min(plain, Body(code_mask(bits, side_info()), CODED), key=len)


def unpack_mask(body: Body, count: int, side_info: Callable[[], SideInfoSource]) -> NDArray[np.bool_]:
    """Return the `count` bits of a body, bool (count,); `side_info` is called only if the body is coded.

    Raises:
        PayloadError: the body is not one that `pack_mask` returns.
    """
    if body.form == CODED:
        return decode_mask(body.data, side_info())
    body.must_be_plain()
    return unpack_bits(body.data, count).view(np.bool_)


def code_mask(bits: NDArray[np.bool_], side_info: SideInfoSource) -> bytes:
    """Return the coded form of bits of shape (d,)."""
    octets = bits.view(np.uint8)
    predictor = BitPredictor()
    coefficients, coded = [], []
    for part in all_parts(side_info.layout):
        pieces = _Pieces(part, octets, side_info)
        predictor.begin(part)
        coefficients.append(predictor.fit(pieces))
        for runs, block, symbols in pieces:
            coded.append((symbols.reshape(-1), predictor.probabilities(runs, block, coefficients[-1])))
            predictor.learn(runs, block, symbols)
    states = np.full(mask_rans.lanes_of(bits.size), LOWEST, np.uint32)
    written = []
    room = np.empty(max((symbols.size for symbols, _ in coded), default=0), np.uint16)
    while coded:  # the coder is a stack: what is pushed last is read first
        symbols, probabilities = coded.pop()
        start = mask_rans.encode(symbols, probabilities, states, room, room.size)
        written.append(room[start:].astype("<u2"))
    checksum = _CHECKSUM.pack(zlib.crc32(pack_bits(bits)))
    fitted = np.concatenate(coefficients).tobytes()
    return b"".join([fitted, checksum, states.astype("<u4").tobytes(), *reversed(written)])


def decode_mask(body: bytes | memoryview, side_info: SideInfoSource) -> NDArray[np.bool_]:
    """Return the bits of shape (d,) that `code_mask` coded with the same side information.

    Raises:
        PayloadError: the body is not shorter than the plain form, or not one that `code_mask` returns.
    """
    count, parts = side_info.layout.count, list(all_parts(side_info.layout))
    fitted, checksum, states, words = _split(body, count, [p.coefficient_count(side_info.has_drift) for p in parts])
    octets = np.empty(count, np.uint8)
    predictor, place = BitPredictor(), 0
    for part, coefficients in zip(parts, fitted, strict=True):
        predictor.begin(part)
        for runs in part.pieces():
            block = side_info.read(part, runs)
            probabilities = predictor.probabilities(runs, block, coefficients)
            symbols = np.empty(probabilities.size, np.uint8)
            place = mask_rans.decode(probabilities, states, words, place, symbols)
            if place < 0:
                raise PayloadError("coded mask ends before its last bit", code="mask-length")
            piece = symbols.reshape(block.size.shape)
            predictor.learn(runs, block, piece)
            part.view(octets)[runs] = _inverted(piece, block)
    if place < words.size or (states != LOWEST).any():
        raise PayloadError("coded mask continues after its last bit", code="mask-length")
    bits = octets.view(np.bool_)
    if zlib.crc32(pack_bits(bits)) != checksum:
        raise PayloadError(
            "coded mask does not match its checksum: the client has other initial weights, or its machine computes "
            "other probabilities; uplink.coder=packed needs neither",
            code="mask-checksum",
            key="uplink.coder",
        )
    return bits


class _Pieces:
    """The side information and the bits of one part as they are coded, piece by piece; they can be read twice.

    Those of a long part are computed again each time, so that they take no copies of the model.
    """

    def __init__(self, part: Part, octets: NDArray[np.uint8], side_info: SideInfoSource) -> None:
        self._part, self._octets, self._side_info = part, octets, side_info
        runs = list(part.pieces())
        self._kept = list(map(self._read, runs)) if len(runs) <= _KEPT else None

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._kept) if self._kept is not None else map(self._read, self._part.pieces())

    def _read(self, runs: slice) -> Piece:
        block = self._side_info.read(self._part, runs)
        return runs, block, _inverted(self._part.view(self._octets)[runs], block)


def _split(
    body: bytes | memoryview, count: int, sizes: Sequence[int]
) -> tuple[list[NDArray[np.float16]], int, NDArray[np.uint32], NDArray[np.uint16]]:
    """Return the checked fields of a coded body: coefficients of these sizes, checksum, states, words."""
    head, lanes = 2 * sum(sizes), mask_rans.lanes_of(count)
    stream = head + _CHECKSUM.size + 4 * lanes
    if not stream <= len(body) < packed_size(count):
        raise PayloadError(
            f"body codes a mask of {count} bits in {len(body)} bytes; it may have {stream} to {packed_size(count) - 1}",
            code="mask-size",
            value=len(body),
        )
    if (len(body) - stream) % 2:
        raise PayloadError(f"coded body has {len(body) - stream} bytes of words, an odd number", code="mask-size")
    view = memoryview(body)
    fitted = np.split(np.frombuffer(view[:head], "<f2"), np.cumsum(sizes)[:-1])
    if not all(np.isfinite(part).all() and part[0] >= 0 for part in fitted):
        raise PayloadError(
            "coded body has coefficients that are not finite, or a negative curvature", code="mask-coefficients"
        )
    states = np.frombuffer(view[stream - 4 * lanes : stream], "<u4").astype(np.uint32)
    if (states < LOWEST).any():
        raise PayloadError(f"coded body has a state below {LOWEST}", code="mask-state")
    words = np.frombuffer(view[stream:], "<u2").astype(np.uint16)
    return fitted, _CHECKSUM.unpack_from(view, head)[0], states, words


def _inverted(bits: NDArray[np.uint8], block: Evidence) -> NDArray[np.uint8]:
    """Return contiguous bits (runs, width), those inverted that the side information says; its own inverse."""
    return np.ascontiguousarray(bits) if block.flipped is None else bits ^ block.flipped.view(np.uint8)
