"""The compiled histogram counts as NumPy does."""

import numpy as np
import pytest

from fedmrn_app.kernels.histogram import MOST, histogram


@pytest.mark.parametrize("scale", [0.0, 0.3, 60.0, 1e5])
def test_symbols_are_counted_by_the_sign_of_their_context(scale: float) -> None:
    random = np.random.default_rng(1)
    symbols = (random.standard_normal(5000) * scale).astype(np.int32)
    contexts = random.integers(-2, 3, 5000).astype(np.int32)
    found = histogram(symbols, contexts)
    assert found.largest == np.abs(symbols).max()
    for row, sign in enumerate((-1, 0, 1)):
        chosen = symbols[np.sign(contexts) == sign]
        inside = chosen[np.abs(chosen) <= MOST]
        assert np.array_equal(found.counts[row, :-1], np.bincount(inside + MOST, minlength=2 * MOST + 1))
        assert found.counts[row, -1] == chosen.size - inside.size
    alone = histogram(symbols)
    assert np.array_equal(alone.counts[1], found.counts.sum(axis=0))
    assert not alone.counts[[0, 2]].any()


def test_an_empty_run_has_no_symbols() -> None:
    counts, largest = histogram(np.zeros(0, np.int32))
    assert largest == 0
    assert not counts.any()
