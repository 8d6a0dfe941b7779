"""Random words by counting are uniform, differ between keys, and any part of them can be drawn alone."""

import numpy as np
import pytest
import torch

from fedmrn_app.kernels import thresholds
from fedmrn_app.kernels.counter_rng import known_key, random_words, step_key, uniforms, unit_floats
from fedmrn_app.kernels.thresholds import Rows

KEY = 0xDEADBEEF12345678
WORDS = (0x2A6ECAB, 0x2528BE40, 0xCAD78D5D)


def test_random_words_are_uniform_and_differ_between_keys() -> None:
    count = 1 << 20
    words = [random_words(step_key(7, step), count) for step in (1, 2)]
    for word in words:
        assert int(word.min()) >= 0
        assert int(word.max()) < 1 << 32
        octets = torch.bincount(word >> 24, minlength=256).double()
        assert float(((octets - count / 256) ** 2 / (count / 256)).sum()) < 255 + 5 * (2 * 255) ** 0.5
        bits = (word[:, None] >> torch.arange(32)) & 1
        assert (bits.double().mean(0) - 0.5).abs().max() < 5 * 0.5 / count**0.5
        a, b = (unit_floats(part).double() - 0.5 for part in (word[:-1], word[1:]))
        assert abs(float((a * b).mean()) * 12) < 5 / count**0.5
    a, b = (unit_floats(word).double() - 0.5 for word in words)
    assert abs(float((a * b).mean()) * 12) < 5 / count**0.5
    assert random_words(KEY, 3, first=5).tolist() == random_words(KEY, 8).tolist()[5:]
    assert random_words(KEY, 3).tolist() == [WORDS[0], WORDS[1], WORDS[2]]


def test_uniforms_are_those_of_the_random_words() -> None:
    for key in (KEY, 0xFFFFFFFFFFFFFFFF, known_key(3)):
        assert np.array_equal(thresholds.uniforms(key, 40_000), uniforms(key, 40_000))
        assert np.array_equal(uniforms(key, 40_000), unit_floats(random_words(key, 40_000)).numpy())
    assert known_key(3) == step_key(3, 0)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(Rows(7, 130), 31), (Rows(0, 1), 50_001), (Rows(100, 9), 9)])
def test_compiled_thresholds_are_the_plain_ones(signed: bool, rows: Rows, width: int) -> None:
    random = np.random.default_rng(0)
    trend = random.normal(size=50_001).astype(np.float32)
    count = 1 if width == trend.size else 300
    n = random.normal(size=(count, width)).astype(np.float32)
    for key in (KEY, 0x12345678FFFFFFF0):
        ours, plain = (
            way(n, rows, key, np.float32(0.4), signed, trend) for way in (thresholds.measure, thresholds.measure_plain)
        )
        for name in ("size", "sign", "trend", "flipped"):
            assert np.array_equal(getattr(ours, name), getattr(plain, name))
