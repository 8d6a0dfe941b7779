"""Payloads are read back as they were written, and all other bytes are refused."""

import dataclasses
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmrn_app.errors import PayloadError
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.payload import HEADER_SIZE, Header, Payload, decode_payload, encode_payload

HEADER = Header(method=2, seed=2**64 - 5, samples=600, weights=21, dense_count=4, dense_bits=6)
PAYLOAD = Payload(HEADER, Body(b"\x01\x02\x03", 1), b"dense", loss=0.5)


def refusal(data: bytes) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        decode_payload(data, HEADER)
    return caught.value


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
    header = Header(method=3, seed=seed, samples=samples, weights=7, dense_count=5, dense_bits=16)
    payload = Payload(header, Body(body, form), dense)
    read = decode_payload(encode_payload(payload), header)
    assert dataclasses.replace(read, body=Body(bytes(read.body.data), read.body.form)) == payload


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("method", 1),
        ("seed", 6),
        ("samples", 601),
        ("samples", 0),
        ("weights", 22),
        ("dense_count", 5),
        ("dense_bits", 32),
    ],
)
def test_another_header_is_refused(field: str, value: int) -> None:
    other = dataclasses.replace(PAYLOAD, header=dataclasses.replace(HEADER, **{field: value}))
    error = refusal(encode_payload(other))
    assert (error.code, error.key, error.value) == ("header", field, value)


@pytest.mark.parametrize("field", ["loss", "train_seconds", "compress_seconds"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_refused(field: str, value: float) -> None:
    changes: dict[str, float] = {field: value}
    error = refusal(encode_payload(dataclasses.replace(PAYLOAD, **changes)))  # type: ignore[arg-type]
    assert (error.code, error.key) == ("not-finite", field)


@given(st.data())
def test_damaged_payload_is_refused(data: st.DataObject) -> None:
    good = bytearray(encode_payload(PAYLOAD))
    good[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
    refusal(bytes(good))


@pytest.mark.parametrize("end", [0, 1, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 2])
def test_truncated_payload_is_refused(end: int) -> None:
    assert refusal(encode_payload(PAYLOAD)[:end]).code == "length"


def test_other_formats_are_refused() -> None:
    good = encode_payload(PAYLOAD)
    assert refusal(b"XX" + good[2:]).code == "magic"
    error = refusal(good[:2] + b"\x04" + good[3:])
    assert (error.code, error.value) == ("version", 4)
    assert refusal(good + b"\0").code == "checksum"


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    refusal(data)
