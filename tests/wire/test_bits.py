"""Bits: what is written is read back, and nothing else is accepted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmrn_app.errors import PayloadError
from fedmrn_app.wire.bits import pack_bits, packed_size, unpack_bits


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
