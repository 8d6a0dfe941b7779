"""Sparse vectors: exact, in the smaller form, never longer than announced."""

import numpy as np
import pytest

from fedmrn_app.errors import PayloadError
from fedmrn_app.wire.body import CODED, PLAIN, Body
from fedmrn_app.wire.sparse import max_sparse_bytes, pack_sparse, unpack_sparse
from tests.helpers import GAUSSIAN, moved


@pytest.mark.parametrize("density", [0.0, 0.0001, 0.03, 0.3, 0.5, 1.0])
def test_sparse_vectors_take_the_smaller_form(density: float) -> None:
    random = np.random.default_rng(0)
    x = (GAUSSIAN[:50_000] * (random.random(50_000) < density)).astype(np.float32)
    side = moved(((100, 500),)).motion
    body = pack_sparse(x, side, "auto")
    assert np.array_equal(unpack_sparse(body, x.size, side), x)
    assert body.form == (PLAIN if density == 0.5 else CODED)
    assert len(body) <= 4 + 50_000 // 8 + 4 * np.count_nonzero(x)
    assert max_sparse_bytes(50_000, int(np.count_nonzero(x))) == 4 + 50_000 // 8 + 4 * np.count_nonzero(x)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\1\0\0", "body has 3 bytes, less than its head of 4"),
        (b"\5\0\0\0" + b"\0" * 20, "announces 5 of 4 values"),
        (b"\1\0\0\0" + b"\3" + b"\0" * 4, "announces 1 values and has 2 positions"),
        (b"\1\0\0\0" + b"\1" + b"\0\0\xc0\x7f", "not finite"),
        (b"\0\0\0\0" + b"\0\0", "2 bytes where 4 bits take 1"),
    ],
)
def test_wrong_sparse_vectors_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        unpack_sparse(Body(data), 4, moved(((2, 2),)).motion)
