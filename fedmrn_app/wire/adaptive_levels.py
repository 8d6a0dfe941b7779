"""Levels of a quantizer, coded with a model that learns from what was coded before and from what both sides know.

`kernels/level_coder.py` describes the model and the coder. Levels are integers, most of them zero.

plain form   one byte, the width b in bits, then b bits per level: 2 |level|, less one if the level is positive
coded form   one byte, how rare nonzero blocks are at first; the CRC-32 of the levels as int16; the words of the coder,
             the high byte first, without the zeros at their end
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.kernels import level_coder
from fedmrn_app.kernels.level_tables import MAX_LEVEL, UNIT, coded_shapes
from fedmrn_app.kernels.softsign import fill_trends
from fedmrn_app.layout import Float32Array, Layout, blocks
from fedmrn_app.wire.body import CODED, Body, Coder
from fedmrn_app.wire.mask_model import Values, scaled_parts
from fedmrn_app.wire.primitives import pack_bits, packed_size, unpack_bits, wrong_length

Levels = NDArray[np.int16]
Trends = NDArray[np.int8]

_HEAD = struct.Struct("<BI")
_FIRST_STEP = 24  # units of the logarithm of the odds that a step of the first byte stands for
_PRICE_PER_BIT = UNIT * math.log(2) / UNIT**2  # a bit has UNIT log(2) units, a square step UNIT^2 square units
_LARGE = int(0.8 * UNIT)
_MAX_WIDTH = (2 * MAX_LEVEL).bit_length()


@dataclass(frozen=True)
class CodedLevels:
    """Levels, int16 (d,), and their coded form."""

    levels: Levels
    data: bytes

    @property
    def shortest(self) -> int:
        """The number of bytes of the shorter form."""
        if len(self.data) <= 1 + packed_size(self.levels.size * bool(self.levels.any())):
            return len(self.data)
        return min(len(self.data), _plain_size(self.levels))


def trends_of(drift: Float32Array) -> Trends:
    """Return how far weights have moved, in 16 levels with a sign, int8 (d,); see `SharedContext.drift`."""
    trends = np.empty(drift.size, np.int8)
    for part in blocks(drift.size):
        scaled = drift[part] * np.float32(16)
        trends[part] = np.clip(scaled, -15, 15, out=scaled)
    return trends


def trends_by_parts(layout: Layout, moved: Values) -> Trends:
    """Return how far weights have moved, as `trends_of` returns it, without a vector of their drift.

    Args:
        layout: of the tensors.
        moved: returns how far a part of a tensor, which is given by its number, has moved, float32 (k,).
    """
    found = np.empty(layout.count, np.int8)
    for place, x, scale in scaled_parts(layout, moved):
        fill_trends(x, scale, found[place])
    return found


def quantize(x: Float32Array, step: float, layout: Layout, trends: Trends, price: float) -> CodedLevels:
    """Quantize and encode a vector in one pass.

    Args:
        x: float32 (d,), finite.
        step: step of the quantizer.
        layout: layout of the tensors.
        trends: as `trends_of` returns them.
        price: price of a bit, as a share of the squared step, at which the sum of squared error and prices is smallest.
    """
    limit = np.float32(MAX_LEVEL * UNIT)
    values = np.empty(x.size, np.int32)
    for part in blocks(x.size):
        with np.errstate(over="ignore"):
            scaled = x[part] * np.float32(UNIT / step)
        values[part] = np.clip(np.rint(scaled, out=scaled), -limit, limit, out=scaled)
    return _encode(values, layout, trends, round(price / _PRICE_PER_BIT))


def encode_levels(levels: Levels, layout: Layout, trends: Trends) -> bytes:
    """Return the coded form of levels, int16 (d,), at most `MAX_LEVEL` in magnitude."""
    return _encode(levels.astype(np.int32) * UNIT, layout, trends, 0).data


def decode_levels(data: bytes | memoryview, layout: Layout, trends: Trends) -> Levels:
    """Return the levels, int16 (d,), of their coded form.

    Raises:
        PayloadError: `encode_levels` returns no such bytes for such a model.
    """
    if not _HEAD.size <= len(data) < max_level_bytes(layout.count):
        raise wrong_length("body", data, f"where {layout.count} coded levels take {_HEAD.size} or more")
    first, checksum = _HEAD.unpack_from(data)
    octets = bytes(data[_HEAD.size :])
    if first > 127 or octets.endswith(b"\0"):
        raise PayloadError("coded levels begin or end as no encoder writes them", code="levels-form")
    words = np.frombuffer(octets + b"\0" * (len(octets) % 2), ">u2").astype(np.uint16)
    levels = level_coder.decode(words, trends, coded_shapes(layout), first * _FIRST_STEP)
    if levels is None:
        raise PayloadError("coded levels end before the last one", code="length", value=len(data))
    if _checksum(levels) != checksum:
        raise PayloadError(
            "coded levels do not match their checksum: the client has other initial weights; uplink.coder=packed needs "
            "none",
            code="levels-checksum",
            key="uplink.coder",
        )
    return levels


def level_body(coded: CodedLevels, coder: Coder) -> Body:
    """Return levels in the shorter form, or in the plain form for `packed`."""
    if coder == "packed" or _plain_size(coded.levels) <= len(coded.data):
        return Body(pack_levels(coded.levels))
    return Body(coded.data, CODED)


def read_levels(body: Body, layout: Layout, trends: Trends) -> Levels:
    """Return the levels of a body, int16 (d,).

    Raises:
        PayloadError: `level_body` returns no such body for such a model.
    """
    if body.form == CODED:
        return decode_levels(body.data, layout, trends)
    body.must_be_plain()
    return unpack_levels(body.data, layout.count)


def pack_levels(levels: Levels) -> bytes:
    """Return the plain form of levels, int16 (d,)."""
    codes = _codes(levels)
    width = _width(codes)
    bits = codes[:, None] >> np.arange(width) & 1
    return bytes([width]) + pack_bits(bits.reshape(-1).astype(np.bool_))


def unpack_levels(data: bytes | memoryview, count: int) -> Levels:
    """Return the `count` levels of their plain form, int16 (count,).

    Raises:
        PayloadError: `pack_levels` returns no such bytes for so many levels.
    """
    if len(data) == 0 or data[0] > _MAX_WIDTH:
        raise PayloadError("body holds no levels, or wider ones than there are", code="levels-form")
    bits = unpack_bits(memoryview(data)[1:], count * data[0]).reshape(count, data[0])
    codes = np.zeros(count, np.int32)
    for place in range(data[0]):
        codes |= bits[:, place].astype(np.int32) << place
    if codes.max(initial=0) > 2 * MAX_LEVEL:
        raise PayloadError(f"body holds a level beyond {MAX_LEVEL}", code="levels-form")
    return np.where(codes & 1, (codes + 1) >> 1, -(codes >> 1)).astype(np.int16)


def max_level_bytes(count: int) -> int:
    """Return the largest number of bytes of `count` levels."""
    return 1 + packed_size(count * _MAX_WIDTH)


def _checksum(levels: Levels) -> int:
    return zlib.crc32(np.ascontiguousarray(levels, "<i2").data)


def _codes(levels: Levels) -> NDArray[np.int32]:
    wide = levels.astype(np.int32)
    return 2 * np.abs(wide) - (wide > 0)


def _plain_size(levels: Levels) -> int:
    return 1 + packed_size(levels.size * _width(_codes(levels)))


def _width(codes: NDArray[np.int32]) -> int:
    return int(codes.max(initial=0)).bit_length()


def _encode(values: NDArray[np.int32], layout: Layout, trends: Trends, price: int) -> CodedLevels:
    # about half of the elements that reach 0.8 steps stand in blocks of their own
    large = sum(np.count_nonzero(np.abs(values[part]) > _LARGE) for part in blocks(values.size))
    rate = 4.5 * large / max(1, values.size)
    odds = math.log((1 - rate) / rate) if 0 < rate < 0.5 else 0.0 if rate else math.inf
    first = min(127, round(min(odds, 1e3) * UNIT / _FIRST_STEP))
    levels, words = level_coder.encode(values, trends, coded_shapes(layout), price, first * _FIRST_STEP)
    head = _HEAD.pack(first, _checksum(levels))
    return CodedLevels(levels, head + words.astype(">u2").tobytes().rstrip(b"\0"))
