"""Trits are exact in both forms, take at most 1.6 bits each, and malformed bodies are refused."""

from functools import partial

import numpy as np
import pytest

from fedmrn_app.wire.body import CODED, CODERS, Body, Coder
from fedmrn_app.wire.ternary import max_trit_bytes, pack_trits, unpack_trits
from tests.helpers import noisy_side
from tests.wire.refusals import refusal


@pytest.mark.parametrize("share", [0.0, 0.02, 0.4, 0.45, 0.5, 1.0])
@pytest.mark.parametrize("count", [1, 4, 5, 300, 1001])
@pytest.mark.parametrize("coder", CODERS)
def test_trits_round_trip(share: float, count: int, coder: Coder) -> None:
    random = np.random.default_rng(1)
    trits = (random.choice([-1, 1], count) * (random.random(count) < share)).astype(np.int8)
    side = partial(noisy_side, ((1, count),))
    body = pack_trits(trits, side, coder)
    assert len(body) <= max_trit_bytes(count)
    assert np.array_equal(unpack_trits(body, count, side), trits)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (Body(b"\x00"), "length"),
        (Body(b"\xf3\x01"), "range"),
        (Body(b"\x79\x05"), "padding"),
        (Body(b"\x00\x00\x00", CODED), "length"),
        (Body(b"\x00\x00", 2), "form"),
    ],
)
def test_malformed_trits_are_refused(body: Body, code: str) -> None:
    assert refusal(unpack_trits, body, 6, partial(noisy_side, ((2, 3),))) == code
