"""Sparse vectors are exact, take the shorter form, and are never longer than their limit."""

import numpy as np
import pytest

from fedmrn_app.wire.body import CODED, PLAIN, Body
from fedmrn_app.wire.sparse import max_sparse_bytes, pack_sparse, unpack_sparse
from tests.helpers import GAUSSIAN, moved
from tests.wire.refusals import refusal


@pytest.mark.parametrize("density", [0.0, 0.0001, 0.03, 0.3, 0.5, 1.0])
def test_sparse_vectors_take_the_shorter_form(density: float) -> None:
    random = np.random.default_rng(0)
    x = (GAUSSIAN[:50_000] * (random.random(50_000) < density)).astype(np.float32)
    side = moved(((100, 500),)).motion
    body = pack_sparse(x, side, "auto")
    assert np.array_equal(unpack_sparse(body, x.size, side), x)
    assert body.form == (PLAIN if density == 0.5 else CODED)
    assert len(body) <= 4 + 50_000 // 8 + 4 * np.count_nonzero(x)
    assert max_sparse_bytes(50_000, int(np.count_nonzero(x))) == 4 + 50_000 // 8 + 4 * np.count_nonzero(x)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\1\0\0", "length"),
        (b"\5\0\0\0" + b"\0" * 20, "count"),  # five of four values
        (b"\1\0\0\0" + b"\3" + b"\0" * 4, "count"),  # one value at two positions
        (b"\1\0\0\0" + b"\1" + b"\0\0\xc0\x7f", "not-finite"),
        (b"\0\0\0\0" + b"\0\0", "length"),
    ],
)
def test_malformed_sparse_vectors_are_refused(data: bytes, code: str) -> None:
    assert refusal(unpack_sparse, Body(data), 4, moved(((2, 2),)).motion) == code
