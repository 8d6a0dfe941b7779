"""Runs of symbols and vectors of few values survive coding, and every symbol has a code in every model.

A single lane gives the bytes of constriction's coder, which wrote the stored payloads.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmrn_app.errors import PayloadError
from fedmrn_app.kernels.symbol_rans import Edges
from fedmrn_app.wire.codebook import LANED, PALETTE, pack_palette, unpack_palette
from fedmrn_app.wire.entropy import (
    LANES,
    LONG,
    SymbolReader,
    categorical,
    decode_runs,
    encode_runs,
    encode_symbols,
    lanes_of,
)
from tests.helpers import GAUSSIAN, codes_every_symbol
from tests.wire.refusals import refusal


def test_every_symbol_of_every_model_has_a_code() -> None:
    random = np.random.default_rng(0)
    for n in random.integers(2, 256, 200):
        assert codes_every_symbol(categorical(random.random(n) ** random.integers(1, 60)), int(n))


@pytest.mark.parametrize("lanes", [1, LANES])
def test_runs_round_trip_with_their_counts(lanes: int) -> None:
    runs = [np.array([0, 1, 1, 2]), np.zeros(5, np.int64), np.arange(256).repeat(3)]
    counts = [np.bincount(run, minlength=3).tolist() for run in runs]
    body = encode_runs(runs, counts, lanes)
    for decoded, run in zip(decode_runs(body, counts, lanes), runs, strict=True):
        assert np.array_equal(decoded, run)
    for bad, codes in ((body[:-1], {"length"}), (body + b"\1\0\0\0", {"symbols", "trailing"}), (body[4:], {"symbols"})):
        assert refusal(decode_runs, bad, counts, lanes) in codes


@pytest.mark.parametrize("lanes", [1, LANES])
@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 400), max_size=4), st.integers(2, 511), st.integers(0, 2**32))
def test_symbols_round_trip(lanes: int, counts: list[int], size: int, seed: int) -> None:
    """Runs under one model or two round-trip."""
    random = np.random.default_rng(seed)
    models = [categorical(random.random(size) ** random.integers(1, 60)) for _ in range(2)]
    runs = [(random.integers(0, size, count), models[place % 2]) for place, count in enumerate(counts)]
    body = encode_symbols(runs, lanes)
    assert read_back(body, lanes, [(model, run.size) for run, model in runs]) == [run.tolist() for run, _ in runs]


def read_back(body: bytes, lanes: int, runs: list[tuple[Edges, int]]) -> list[list[int]]:
    reader = SymbolReader(body, lanes)
    read = [reader.read(model, count).tolist() for model, count in runs]
    reader.check_end("body")
    return read


def test_a_single_lane_gives_the_bytes_of_constriction() -> None:
    peer = pytest.importorskip("tests.plain.constriction_coder", reason="constriction has no wheels for this machine")
    random = np.random.default_rng(1)
    for n in [*random.integers(2, 512, 100), *range(2, 40)]:
        weights = random.random(n) ** random.integers(1, 60)
        symbols = random.choice(n, 500, p=weights / weights.sum())
        symbols[:20] = random.integers(0, n, 20)
        body = encode_symbols([(symbols, categorical(weights))], lanes=1)
        assert body == peer.peer_encode(symbols, weights)
        assert np.array_equal(peer.peer_decode(body, weights, symbols.size), symbols)


def test_several_lanes_take_few_more_bytes() -> None:
    """A body of the shortest length that has several lanes is a thousandth longer than in one."""
    weights = np.array([1.0, 5, 30, 5, 1])
    symbols = np.random.default_rng(2).choice(5, 8 * LONG, p=weights / weights.sum())
    one, many = (encode_symbols([(symbols, categorical(weights))], lanes) for lanes in (1, LANES))
    assert len(one) > LONG
    assert len(many) - len(one) <= LONG / 1000
    assert (lanes_of(LONG - 1), lanes_of(LONG)) == (1, LANES)


def test_malformed_states_are_refused() -> None:
    model = categorical(np.ones(4))
    body = encode_symbols([(np.arange(400) % 4, model)], LANES)
    for bad, lanes, code in (
        (body[-60:], LANES, "length"),
        (body[:-1], LANES, "length"),
        (body[:-4] + bytes(4), LANES, "malformed"),
        (bytes(4), 1, "malformed"),
        (bytes(4) + body, LANES, "trailing"),
        (body[4:], LANES, "trailing"),
    ):
        assert refusal(read_back, bad, lanes, [(model, 400)]) == code


@pytest.mark.parametrize(("count", "form"), [(100_000, PALETTE), (300_000, LANED)])
def test_palettes_are_exact_and_short(count: int, form: int) -> None:
    means = (np.random.default_rng(0).binomial(10, 0.3, count) / 10).astype(np.float32)
    body = pack_palette(means)
    assert body[0] == form
    assert np.array_equal(unpack_palette(body, means.size), means)
    assert 8 * len(body) / means.size < 2.6  # the entropy of 11 binomial values is 2.55 bits
    assert np.array_equal(unpack_palette(pack_palette(GAUSSIAN[:1000]), 1000), GAUSSIAN[:1000])
    assert len(pack_palette(np.full(10**6, 0.5, np.float32))) == 10
    for bad in (b"", b"\0", body[:-1], body[:1000], b"\7" + body[1:], body + b"\0\0\0\0"):
        with pytest.raises(PayloadError):
            unpack_palette(bad, means.size)
