"""The compiled coder of symbols equals the plain one word for word, and reads no word after the end."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmrn_app.kernels import symbol_rans
from fedmrn_app.kernels.symbol_rans import LOWEST, Edges, Symbols, start_states
from fedmrn_app.wire.entropy import categorical
from tests.plain import symbol_rans as symbol_rans_plain

FORMS = (symbol_rans, symbol_rans_plain)
LANES = st.sampled_from([1, 8])
SIZES = st.sampled_from([2, 3, 16, 511])


def random_symbols(count: int, size: int, seed: int) -> tuple[Symbols, Edges]:
    """Return symbols and their model, in which some symbols have one or two steps of 2^24."""
    random = np.random.default_rng(seed)
    weights = random.random(size) ** random.integers(0, 60)
    probable = random.choice(size, count, p=weights / weights.sum())
    symbols = np.where(random.random(count) < 0.9, probable, random.integers(0, size, count))
    return symbols.astype(np.uint16), categorical(weights)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 300), SIZES, st.integers(0, 2**32), LANES)
def test_compiled_coder_equals_the_plain_one(count: int, size: int, seed: int, lanes: int) -> None:
    symbols, edges = random_symbols(count, size, seed)
    coded = []
    for coder in FORMS:
        states, words = start_states(lanes), np.zeros(count + 1, np.uint32)
        place = coder.encode(symbols, edges, states, words, 0)
        coded.append((states, words[:place], place))
    for compiled, plain in zip(*coded, strict=True):
        assert np.array_equal(compiled, plain)
    for coder in FORMS:
        decoded, states = np.empty_like(symbols), coded[0][0].copy()
        assert coder.decode(edges, states, coded[0][1], coded[0][2], decoded) == 0
        assert np.array_equal(decoded, symbols)
        assert np.array_equal(states, start_states(lanes))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 60), SIZES, st.integers(0, 2**32), LANES, st.booleans())
def test_damaged_words_are_decoded_alike_and_never_before_the_first(
    count: int, size: int, seed: int, lanes: int, low: bool
) -> None:
    random = np.random.default_rng(seed)
    edges = random_symbols(0, size, seed)[1]
    words = random.integers(0, 1 << 32, count, np.uint32)
    states = random.integers(0, LOWEST if low else (1 << 64) - 1, lanes, np.uint64)
    results = []
    for coder in FORMS:
        out, own = np.zeros(200, np.uint16), states.copy()
        place = coder.decode(edges, own, words, count, out)
        assert 0 <= place <= count
        results.append((place, out.tolist(), own.tolist()))
    assert results[0] == results[1]


def test_what_does_not_fit_is_refused() -> None:
    symbols, edges = random_symbols(10, 3, 0)
    with pytest.raises(ValueError, match="10 symbols"):
        symbol_rans.encode(symbols, edges, start_states(1), np.zeros(10, np.uint32), 0)
    with pytest.raises(ValueError, match="symbol 3 has no code"):
        symbol_rans.encode(symbols + np.uint16(3 - symbols.max()), edges, start_states(1), np.zeros(99, np.uint32), 0)
    with pytest.raises(ValueError, match="word 10 of 9"):
        symbol_rans.decode(edges, start_states(1), np.zeros(9, np.uint32), 10, symbols)


@pytest.mark.parametrize("lanes", [1, 8])
def test_length_is_the_cross_entropy_of_the_model(lanes: int) -> None:
    """The length is at most 0.01% more than the cross entropy and the lanes' states."""
    random = np.random.default_rng(3)
    weights = random.random(100) ** 8
    edges = categorical(weights)
    p = (edges[1:] - edges[:-1]) / 2**24
    symbols = random.choice(p.size, 1 << 18, p=p).astype(np.uint16)
    states, words = start_states(lanes), np.empty(symbols.size + 1, np.uint32)
    length = 32 * symbol_rans.encode(symbols, edges, states, words, 0) + 64 * lanes
    assert length < 1.0001 * -np.log2(p[symbols]).sum() + 64 * lanes
