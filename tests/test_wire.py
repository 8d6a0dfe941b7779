"""Bits and payloads: what is written is read back, and nothing else is accepted."""

import dataclasses
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmrn_app.errors import PayloadError
from fedmrn_app.wire.bits import pack_bits, packed_size, unpack_bits
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.payload import HEADER_SIZE, Expected, Payload, decode_payload, encode_payload

PAYLOAD = Payload(
    method=2,
    seed=2**64 - 5,
    samples=600,
    weights=21,
    body=Body(b"\x01\x02\x03", 1),
    dense=b"dense",
    dense_count=4,
    dense_bits=6,
    loss=0.5,
)
EXPECTED = Expected(method=2, seed=2**64 - 5, samples=600, weights=21, dense_count=4, dense_bits=6)


@given(st.lists(st.booleans(), max_size=300))
def test_bits_round_trip(bits: list[bool]) -> None:
    packed = pack_bits(np.array(bits, bool))
    assert len(packed) == packed_size(len(bits)) == -(-len(bits) // 8)
    assert unpack_bits(packed, len(bits)).tolist() == bits


def test_bit_order_is_lowest_first() -> None:
    assert pack_bits(np.array([1, 0, 0, 0, 0, 0, 0, 0, 1], bool)) == b"\x01\x01"


@pytest.mark.parametrize(("body", "count"), [(b"", 1), (b"\x00\x00", 8), (b"\x00", 9), (b"\x02", 1), (b"\x80", 7)])
def test_bits_refused(body: bytes, count: int) -> None:
    with pytest.raises(PayloadError):
        unpack_bits(body, count)


def test_payload_layout_is_fixed() -> None:
    fields = struct.pack("<2sBBBBIQIIIfff", b"FM", 2, 2, 1, 6, 600, 2**64 - 5, 21, 4, 3, 0.5, 0, 0)
    rest = b"\x01\x02\x03dense"
    assert encode_payload(PAYLOAD) == fields + struct.pack("<I", zlib.crc32(fields + rest)) + rest
    assert HEADER_SIZE == 46


@given(
    body=st.binary(max_size=50),
    dense=st.binary(max_size=20),
    coder=st.integers(0, 255),
    seed=st.integers(0, 2**64 - 1),
    samples=st.integers(1, 2**32 - 1),
)
def test_payload_round_trip(body: bytes, dense: bytes, coder: int, seed: int, samples: int) -> None:
    payload = Payload(3, seed, samples, 7, Body(body, coder), dense, 5, 16)
    read = decode_payload(encode_payload(payload), Expected(3, seed, samples, 7, 5, 16))
    assert dataclasses.replace(read, body=Body(bytes(read.body.data), read.body.coder)) == payload


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"method": 1}, "method is 1, expected 2"),
        ({"seed": 6}, "seed is 6"),
        ({"samples": 601}, "sample count is 601, expected 600"),
        ({"samples": 0}, "sample count is 0"),
        ({"weights": 22}, "weight count is 22"),
        ({"dense_count": 5}, "dense count is 5"),
        ({"loss": float("nan")}, "loss is nan"),
        ({"train_seconds": float("inf")}, "train_seconds is inf"),
        ({"dense_bits": 32}, "bits a dense value is 32, expected 6"),
    ],
)
def test_payload_with_another_field_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        decode_payload(encode_payload(dataclasses.replace(PAYLOAD, **change)), EXPECTED)


@given(st.data())
def test_damaged_payload_is_refused(data: st.DataObject) -> None:
    good = bytearray(encode_payload(PAYLOAD))
    position = data.draw(st.integers(0, len(good) - 1))
    good[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PayloadError):
        decode_payload(bytes(good), EXPECTED)


@pytest.mark.parametrize("end", [0, 1, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 2])
def test_truncated_payload_is_refused(end: int) -> None:
    with pytest.raises(PayloadError, match="payload has"):
        decode_payload(encode_payload(PAYLOAD)[:end], EXPECTED)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(PayloadError):
        decode_payload(data, EXPECTED)
