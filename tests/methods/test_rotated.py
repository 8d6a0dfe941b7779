"""Updates that are rotated back while they are added are, bit by bit, those that are decoded at once."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmrn_app import layout
from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Layout
from fedmrn_app.methods.contribution import Contribution, VectorContribution
from fedmrn_app.methods.hadamard import BLOCK
from fedmrn_app.methods.rotated import RotatedContribution
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.body import Body
from tests.helpers import make_method

CODECS: dict[str, dict[str, Any]] = {
    "drive": {},
    "eden": {},
    "eden of two bits": {"bits": 2},
    "eden of uniform levels": {"bits": 4, "levels": "uniform"},
}
SIZES = (1, 5, 64, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 999, 3 * BLOCK)


def new_codec(name: str) -> Any:
    return make_method(name.split()[0], **CODECS[name]).codec


def known(size: int) -> SharedContext:
    nothing = np.zeros(size, np.float32)
    return SharedContext(Layout(((size,),)), nothing, nothing)


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(list(CODECS)), size=st.sampled_from(SIZES), pieces=st.integers(1, 5), seed=st.integers(0, 9)
)
def test_pieces_of_any_size_add_up_to_the_decoded_update(name: str, size: int, pieces: int, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=size).astype(np.float32)
    codec, total = new_codec(name), np.ones(size, np.float32)
    body = codec.encode(x, known(size), seed, 2)
    read = codec.read(body, known(size), seed)
    assert isinstance(read, RotatedContribution)
    for first in range(0, size, pieces * layout.BLOCK):
        read.add_to(total[first : first + pieces * layout.BLOCK], np.float32(0.3), first)
    expected = np.ones(size, np.float32)
    expected += np.float32(0.3) * codec.decode(body, known(size), seed)
    assert total.tobytes() == expected.tobytes()
    plain = Contribution.square_norm(read, size)
    assert read.square_norm(size) == pytest.approx(plain, rel=1e-5)
    assert VectorContribution(codec.decode(body, known(size), seed)).square_norm(size) == pytest.approx(plain, rel=1e-9)


@pytest.mark.parametrize("name", CODECS)
def test_scales_that_might_overflow_are_decoded_before_they_are_added(name: str) -> None:
    codec, x = new_codec(name), np.random.default_rng(0).normal(size=BLOCK + 24).astype(np.float32)
    body = codec.encode(x, known(x.size), 1, 2)
    for scale, kind in ((1e28, RotatedContribution), (1e33, VectorContribution)):
        changed = np.full(1, scale, "<f4").tobytes() + bytes(body.data[4:])
        read = codec.read(Body(changed, body.form), known(x.size), 1)
        assert isinstance(read, kind)
        total = np.zeros(x.size, np.float32)
        read.add_to(total, np.float32(1))
        assert np.isfinite(total).all()
    changed = np.full(1, 3e38, "<f4").tobytes() + bytes(body.data[4:])
    with pytest.raises(PayloadError, match="not finite"):
        codec.read(Body(changed, body.form), known(x.size), 1)
