"""Palettes: exact, small for few different values, and what is malformed is refused."""

import numpy as np
import pytest

from fedmrn_app.errors import PayloadError
from fedmrn_app.wire.codebook import pack_palette, unpack_palette
from tests.helpers import GAUSSIAN


def test_palette_is_exact_and_small() -> None:
    means = (np.random.default_rng(0).binomial(10, 0.3, 100_000) / 10).astype(np.float32)
    body = pack_palette(means)
    assert np.array_equal(unpack_palette(body, means.size), means)
    assert 8 * len(body) / means.size < 2.6  # a tenth of float32: the entropy of 11 binomial values is 2.55 bits
    assert np.array_equal(unpack_palette(pack_palette(GAUSSIAN[:1000]), 1000), GAUSSIAN[:1000])
    assert len(pack_palette(np.full(10**6, 0.5, np.float32))) == 10
    for bad in (b"", b"\0", body[:-1], body[:1000], b"\7" + body[1:], body + b"\0\0\0\0"):
        with pytest.raises(PayloadError):
            unpack_palette(bad, means.size)
