"""What both sides know: where weights have moved, told without a scale, and which of them a client holds."""

import numpy as np
import pytest

from fedmrn_app.layout import Layout
from fedmrn_app.methods.shared_context import SharedContext, softsign


def test_softsign_is_bounded_and_scale_free() -> None:
    layout = Layout(((100, 100), (3, 7)))
    x = np.random.default_rng(0).standard_normal(10_021).astype(np.float32)
    y = softsign(x.copy(), layout)
    assert (np.abs(y) < 1).all()
    assert np.array_equal(np.sign(x), np.sign(y))
    assert np.array_equal(softsign(x * np.float32(2**-20), layout), y)
    assert np.median(np.abs(y[:10_000])) == pytest.approx(0.25, abs=0.01)
    assert not softsign(np.zeros(10_021, np.float32), layout).any()


def test_trend_and_motion_are_of_the_way_since_the_start() -> None:
    layout = Layout(((1, 3),))
    known = SharedContext(layout, np.array([1, 2, 3], np.float32), np.array([1, 4, 2], np.float32))
    assert known.count == 3
    assert np.sign(known.trend).tolist() == [0, -1, 1]
    assert np.array_equal(known.motion().size, np.abs(known.trend))


def test_without_a_choice_all_is_held() -> None:
    zeros = np.zeros(2, np.float32)
    assert SharedContext(Layout(((1, 2),)), zeros, zeros).held_weights().all()
    held = np.array([True, False])
    assert SharedContext(Layout(((1, 2),)), zeros, zeros, held).held_weights() is held
