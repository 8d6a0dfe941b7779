"""Runs of symbols survive coding, and every symbol has room in every model."""

import numpy as np
import pytest

from fedmrn_app.errors import PayloadError
from fedmrn_app.wire.entropy import categorical, decode_runs, encode_runs
from tests.helpers import codes_every_symbol


def test_every_symbol_of_every_model_can_be_coded() -> None:
    random = np.random.default_rng(0)
    for n in random.integers(2, 256, 200):
        assert codes_every_symbol(categorical(random.random(n) ** random.integers(1, 60)), int(n))


def test_runs_with_their_counts() -> None:
    runs = [np.array([0, 1, 1, 2]), np.zeros(5, np.int64), np.arange(256).repeat(3)]
    counts = [np.bincount(run, minlength=3).tolist() for run in runs]
    body = encode_runs(runs, counts)
    for mine, theirs in zip(decode_runs(body, counts), runs, strict=True):
        assert np.array_equal(mine, theirs)
    for bad in (body[:-1], body + b"\1\0\0\0", body[4:]):
        with pytest.raises(PayloadError, match="coded body"):
            decode_runs(bad, counts)
