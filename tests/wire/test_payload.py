"""Payloads: what is written is read back, and nothing else is accepted."""

import dataclasses
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmrn_app.errors import PayloadError
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.payload import HEADER_SIZE, Header, Payload, decode_payload, encode_payload

HEADER = Header(method=2, seed=2**64 - 5, samples=600, weights=21, dense_count=4, dense_bits=6)
PAYLOAD = Payload(HEADER, Body(b"\x01\x02\x03", 1), b"dense", loss=0.5)


def test_payload_layout_is_fixed() -> None:
    fields = struct.pack("<2sBBBBIQIIIfff", b"FM", 3, 2, 1, 6, 600, 2**64 - 5, 21, 4, 3, 0.5, 0, 0)
    rest = b"\x01\x02\x03dense"
    assert encode_payload(PAYLOAD) == fields + struct.pack("<I", zlib.crc32(fields + rest)) + rest
    assert HEADER_SIZE == 46


@given(
    body=st.binary(max_size=50),
    dense=st.binary(max_size=20),
    form=st.integers(0, 255),
    seed=st.integers(0, 2**64 - 1),
    samples=st.integers(1, 2**32 - 1),
)
def test_payload_round_trip(body: bytes, dense: bytes, form: int, seed: int, samples: int) -> None:
    header = Header(3, seed, samples, 7, 5, 16)
    payload = Payload(header, Body(body, form), dense)
    read = decode_payload(encode_payload(payload), header)
    assert dataclasses.replace(read, body=Body(bytes(read.body.data), read.body.form)) == payload


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"method": 1}, "method is 1, expected 2"),
        ({"seed": 6}, "seed is 6"),
        ({"samples": 601}, "sample count is 601, expected 600"),
        ({"samples": 0}, "sample count is 0"),
        ({"weights": 22}, "weight count is 22"),
        ({"dense_count": 5}, "dense count is 5"),
        ({"dense_bits": 32}, "bits per dense value is 32, expected 6"),
    ],
)
def test_payload_with_another_header_is_refused(change: dict[str, int], reason: str) -> None:
    other = dataclasses.replace(PAYLOAD, header=dataclasses.replace(HEADER, **change))
    with pytest.raises(PayloadError, match=reason):
        decode_payload(encode_payload(other), HEADER)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"loss": float("nan")}, "loss is nan"),
        ({"train_seconds": float("inf")}, "train_seconds is inf"),
        ({"compress_seconds": float("-inf")}, "compress_seconds is -inf"),
    ],
)
def test_payload_of_what_is_not_finite_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        decode_payload(encode_payload(dataclasses.replace(PAYLOAD, **change)), HEADER)


@given(st.data())
def test_damaged_payload_is_refused(data: st.DataObject) -> None:
    good = bytearray(encode_payload(PAYLOAD))
    position = data.draw(st.integers(0, len(good) - 1))
    good[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PayloadError):
        decode_payload(bytes(good), HEADER)


@pytest.mark.parametrize("end", [0, 1, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 2])
def test_truncated_payload_is_refused(end: int) -> None:
    with pytest.raises(PayloadError, match="payload has"):
        decode_payload(encode_payload(PAYLOAD)[:end], HEADER)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(PayloadError):
        decode_payload(data, HEADER)
