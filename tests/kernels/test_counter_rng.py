"""Counter-based random words are uniform, differ between keys, and any part of them can be drawn alone."""

import numpy as np
import pytest
import torch

from fedmrn_app.kernels.counter_rng import known_key, random_words, step_key, unit_floats
from fedmrn_app.kernels.mask_rans import Evidence
from fedmrn_app.kernels.thresholds import Rows, Thresholds, measure, uniforms
from fedmrn_app.layout import Float32Array

KEY = 0xDEADBEEF12345678


def plain_measure(
    thresholds: Thresholds, n: Float32Array, rows: Rows, trend: Float32Array, estimate: Float32Array | None = None
) -> Evidence:
    places = rows.start + rows.stride * np.arange(len(n))[:, None] + np.arange(n.shape[1])
    v = unit_floats(random_words(thresholds.key, int(places.max()) + 1)).numpy()[places]
    sign = np.copysign(np.float32(1), n)
    inverted = None
    if thresholds.signed:
        v = v + v - np.float32(1)
        inverted = v < 0
        sign = np.where(inverted, -sign, sign)
    size = np.abs(n) * thresholds.scale * np.abs(v)
    if estimate is not None:
        size = size - sign * estimate
        beyond = size < 0
        size = np.abs(size)
        sign = np.where(beyond, -sign, sign)
        inverted = beyond if inverted is None else inverted ^ beyond
    size = np.minimum(size, np.float32(1))
    return Evidence(size, sign, trend * sign, inverted)


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
    for one, other in ((words[0][:-1], words[0][1:]), (words[1][:-1], words[1][1:]), words):
        a, b = (unit_floats(word).double() - 0.5 for word in (one, other))
        assert abs(float((a * b).mean()) * 12) < 5 / count**0.5
    assert random_words(KEY, 3).tolist() == [0x2A6ECAB, 0x2528BE40, 0xCAD78D5D]
    assert random_words(KEY, 3, first=5).tolist() == random_words(KEY, 8).tolist()[5:]


def test_compiled_uniforms_equal_the_plain_form() -> None:
    for key in (KEY, 0xFFFFFFFFFFFFFFFF, known_key(3)):
        assert np.array_equal(uniforms(key, 40_000), unit_floats(random_words(key, 40_000)).numpy())
    assert known_key(3) == step_key(3, 0)


@pytest.mark.parametrize("estimated", [False, True])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(Rows(7, 130), 31), (Rows(0, 1), 50_001), (Rows(100, 9), 9)])
def test_compiled_thresholds_equal_the_plain_form(signed: bool, estimated: bool, rows: Rows, width: int) -> None:
    random = np.random.default_rng(0)
    count = 1 if width == 50_001 else 300
    trend = random.normal(size=(count, width)).astype(np.float32)
    n = random.normal(size=(count, width)).astype(np.float32)
    estimate = 0.2 * random.normal(size=(count, width)).astype(np.float32) if estimated else None
    for key in (KEY, 0x12345678FFFFFFF0):
        thresholds = Thresholds(key, np.float32(0.4), signed)
        compiled, plain = (form(thresholds, n, rows, trend, estimate) for form in (measure, plain_measure))
        for name in ("size", "sign", "trend", "flipped"):
            assert np.array_equal(getattr(compiled, name), getattr(plain, name))
