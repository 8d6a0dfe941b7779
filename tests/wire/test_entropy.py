"""Runs of symbols and vectors of few values survive coding, and every symbol has a code in every model."""

import numpy as np
import pytest

from fedmrn_app.errors import PayloadError
from fedmrn_app.wire.codebook import pack_palette, unpack_palette
from fedmrn_app.wire.entropy import categorical, decode_runs, encode_runs
from tests.helpers import GAUSSIAN, codes_every_symbol
from tests.wire.refusals import refusal


def test_every_symbol_of_every_model_has_a_code() -> None:
    random = np.random.default_rng(0)
    for n in random.integers(2, 256, 200):
        assert codes_every_symbol(categorical(random.random(n) ** random.integers(1, 60)), int(n))


def test_runs_round_trip_with_their_counts() -> None:
    runs = [np.array([0, 1, 1, 2]), np.zeros(5, np.int64), np.arange(256).repeat(3)]
    counts = [np.bincount(run, minlength=3).tolist() for run in runs]
    body = encode_runs(runs, counts)
    for decoded, run in zip(decode_runs(body, counts), runs, strict=True):
        assert np.array_equal(decoded, run)
    for bad, codes in ((body[:-1], {"length"}), (body + b"\1\0\0\0", {"symbols", "trailing"}), (body[4:], {"symbols"})):
        assert refusal(decode_runs, bad, counts) in codes


def test_palettes_are_exact_and_short() -> None:
    means = (np.random.default_rng(0).binomial(10, 0.3, 100_000) / 10).astype(np.float32)
    body = pack_palette(means)
    assert np.array_equal(unpack_palette(body, means.size), means)
    assert 8 * len(body) / means.size < 2.6  # the entropy of 11 binomial values is 2.55 bits
    assert np.array_equal(unpack_palette(pack_palette(GAUSSIAN[:1000]), 1000), GAUSSIAN[:1000])
    assert len(pack_palette(np.full(10**6, 0.5, np.float32))) == 10
    for bad in (b"", b"\0", body[:-1], body[:1000], b"\7" + body[1:], body + b"\0\0\0\0"):
        with pytest.raises(PayloadError):
            unpack_palette(bad, means.size)
