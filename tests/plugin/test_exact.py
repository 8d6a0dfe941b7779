"""Packed bytes of exact tensors are unpacked as they were, and only where they have the length that is expected."""

import zlib

import numpy as np
import pytest

from fedmrn_app.errors import PayloadError
from fedmrn_app.plugin.exact import pack_exact, unpack_exact


@pytest.mark.parametrize("count", [1, 100, 100_000])
def test_few_values_are_packed_and_weights_are_not(count: int) -> None:
    random = np.random.default_rng(0)
    ones = np.ones(100 * count, np.float32).tobytes()
    packed = pack_exact(ones)
    assert packed is not None
    assert unpack_exact(packed, len(ones)) == ones
    assert pack_exact(random.standard_normal(count, np.float32).tobytes()) is None


def test_a_part_of_few_values_in_the_middle_does_not_make_the_whole_longer() -> None:
    random = np.random.default_rng(0).standard_normal(100_000, np.float32).tobytes()
    assert pack_exact(random + bytes(100_000) + random) is None
    assert pack_exact(b"") is None


@pytest.mark.parametrize(
    ("packed", "code"),
    [
        (b"nothing", "exact"),
        (zlib.compress(bytes(11)), "length"),
        (zlib.compress(bytes(9)), "length"),
        (zlib.compress(bytes(1 << 24)), "length"),
        (zlib.compress(bytes(10))[:-1], "length"),
    ],
)
def test_lying_bytes_are_refused(packed: bytes, code: str) -> None:
    with pytest.raises(PayloadError) as refused:
        unpack_exact(packed, 10)
    assert refused.value.code == code
