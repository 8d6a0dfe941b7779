"""Bits and floats are read back as they were written, and malformed bytes are refused."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmrn_app.wire.primitives import pack_bits, packed_size, unpack_bits, unpack_floats, unpack_scales
from tests.wire.refusals import refusal


@given(st.lists(st.booleans(), max_size=300))
def test_bits_round_trip(bits: list[bool]) -> None:
    packed = pack_bits(np.array(bits, bool))
    assert len(packed) == packed_size(len(bits)) == -(-len(bits) // 8)
    assert unpack_bits(packed, len(bits)).tolist() == bits


def test_lowest_bit_is_first() -> None:
    assert pack_bits(np.array([1, 0, 0, 0, 0, 0, 0, 0, 1], bool)) == b"\x01\x01"


@pytest.mark.parametrize(
    ("body", "count", "code"),
    [
        (b"", 1, "length"),
        (b"\x00\x00", 8, "length"),
        (b"\x00", 9, "length"),
        (b"\x02", 1, "padding"),
        (b"\x80", 7, "padding"),
    ],
)
def test_malformed_bits_are_refused(body: bytes, count: int, code: str) -> None:
    assert refusal(unpack_bits, body, count) == code


def test_malformed_floats_are_refused() -> None:
    scales, rest = unpack_scales(struct.pack("<ff", 1, 0) + b"rest", 2)
    assert (scales.tolist(), bytes(rest)) == ([1, 0], b"rest")
    for body, code in ((b"\0" * 7, "length"), (struct.pack("<ff", 1, np.inf), "not-finite")):
        for unpack in (unpack_floats, unpack_scales):
            assert refusal(unpack, body, 2) == code
    assert refusal(unpack_scales, struct.pack("<ff", 1, -1), 2) == "negative"
