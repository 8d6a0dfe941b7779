"""The compiled coder equals the plain one byte for byte, and reads no word after the end."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedmrn_app.kernels import mask_rans
from fedmrn_app.kernels.mask_rans import LOWEST, STEPS, Evidence
from fedmrn_app.layout import Layout
from fedmrn_app.wire.mask_model import SideInformation
from fedmrn_app.wire.masks import code_mask, decode_mask
from tests.helpers import SHAPES
from tests.plain import mask_rans as mask_rans_plain

FORMS = (mask_rans, mask_rans_plain)
LANES = st.sampled_from([1, 8])


def start_states(lanes: int) -> NDArray[np.uint32]:
    return np.full(lanes, LOWEST, np.uint32)


def random_bits(count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """Return bits and their shares; some shares have the least or the largest value."""
    random = np.random.default_rng(seed)
    shares = np.clip(random.normal(STEPS / 4, STEPS / 3, count), 1, STEPS - 1).astype(np.uint16)
    return (random.random(count) * STEPS < shares).astype(np.uint8), shares


def random_evidence(shape: tuple[int, int], *, signed: bool, trending: bool) -> Evidence:
    random = np.random.default_rng(1)
    size = random.random(shape, np.float32)
    sign = np.copysign(np.float32(1), random.normal(size=shape)).astype(np.float32)
    trend = random.uniform(-1, 1, shape).astype(np.float32)
    return Evidence(size, sign if signed else None, trend if trending else None)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 200), st.integers(0, 2**32), LANES, st.booleans())
def test_compiled_coder_equals_the_plain_one(count: int, seed: int, lanes: int, unlikely: bool) -> None:
    bits, shares = random_bits(count, seed)
    bits ^= np.uint8(unlikely)
    coded = []
    for coder in FORMS:
        states, words = start_states(lanes), np.zeros(count + 3, np.uint16)
        start = coder.encode(bits, shares, states, words, count)
        coded.append((states, words, start))
    for compiled, plain in zip(*coded, strict=True):
        assert np.array_equal(compiled, plain)
    for coder in FORMS:
        decoded, states = np.empty_like(bits), coded[0][0].copy()
        assert coder.decode(shares, states, coded[0][1], coded[0][2], decoded) == count
        assert np.array_equal(decoded, bits)
        assert np.array_equal(states, start_states(lanes))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 60), st.integers(0, 2**32), LANES)
def test_damaged_words_are_decoded_alike_and_never_beyond_their_end(count: int, seed: int, lanes: int) -> None:
    random = np.random.default_rng(seed)
    shares = random_bits(200, seed)[1]
    words = random.integers(0, 1 << 16, count, np.uint16)
    states = random.integers(LOWEST, 1 << 32, lanes, np.uint32)
    results = []
    for coder in FORMS:
        out, own = np.zeros(200, np.uint8), states.copy()
        end = coder.decode(shares, own, words, 0, out)
        assert end <= count
        results.append((end, out.tolist(), own.tolist()) if end >= 0 else (end,))
    assert results[0] == results[1]


def test_different_lengths_are_refused() -> None:
    bits, shares = random_bits(10, 0)
    with pytest.raises(ValueError, match="10 bits"):
        mask_rans.encode(bits, shares, start_states(1), np.zeros(9, np.uint16), 9)
    with pytest.raises(ValueError, match="10 shares"):
        mask_rans.decode(shares, start_states(1), np.zeros(9, np.uint16), 0, np.zeros(9, np.uint8))


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("trending", [False, True])
@pytest.mark.parametrize("scale", [1.0, 60000.0])
def test_compiled_shares_equal_the_plain_ones(signed: bool, trending: bool, scale: float) -> None:
    random = np.random.default_rng(1)
    evidence = random_evidence((60, 43), signed=signed, trending=trending)
    bits = random.integers(0, 2, (60, 43), np.uint8)
    for compiled, plain in zip(*(form.count_runs(evidence, bits) for form in FORMS), strict=True):
        assert np.array_equal(compiled, plain)
    effect, density = random.uniform(-1, 1, (2, 60)).astype(np.float32)
    for curvature in (0.0, 0.7, 1000.0):
        c = (random.uniform(-scale, scale, 9) * STEPS / 4).astype(np.float32)
        compiled, plain = (form.find_shares(evidence, c, np.float32(curvature), effect, density) for form in FORMS)
        assert np.array_equal(compiled, plain)
        assert 1 <= compiled.min() < compiled.max() <= STEPS - 1


@pytest.mark.parametrize("flipped", [False, True])
def test_whole_masks_have_the_bytes_of_the_plain_form(flipped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout((*SHAPES, (70, 250)))
    values = random_evidence((1, layout.count), signed=True, trending=True)
    assert values.sign is not None
    assert values.trend is not None
    random = np.random.default_rng(2)
    inverted = random.random(layout.count) < 0.5 if flipped else None
    side = SideInformation(layout, values.size[0], values.sign[0], values.trend[0], inverted)
    bits = random.random(layout.count) < 0.5 - 0.4 * values.size[0]
    if inverted is not None:
        bits ^= inverted
    body = code_mask(bits, side)
    for name in ("count_runs", "find_shares", "encode", "decode"):
        monkeypatch.setattr(mask_rans, name, getattr(mask_rans_plain, name))
    assert code_mask(bits, side) == body
    assert np.array_equal(decode_mask(body, side), bits)


@pytest.mark.parametrize("mean", [0.01, 0.15, 0.5])
def test_length_is_the_cross_entropy_of_the_shares(mean: float) -> None:
    """The length is at most 0.05% more than the cross entropy and the lanes' states."""
    random = np.random.default_rng(3)
    count = 1 << 20
    shares = np.clip(random.exponential(mean, count) * STEPS, 1, STEPS - 1).astype(np.uint16)
    p = shares / STEPS
    bits = (random.random(count) < p).astype(np.uint8)
    states, words = start_states(8), np.empty(count, np.uint16)
    length = 16 * (count - mask_rans.encode(bits, shares, states, words, count)) + 32 * states.size
    assert length < 1.0005 * -np.log2(np.where(bits, p, 1 - p)).sum() + 32 * states.size
