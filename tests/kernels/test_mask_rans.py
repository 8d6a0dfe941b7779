"""The compiled coder equals the plain one byte for byte, reads no byte too many, and compiles anywhere."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedmrn_app.kernels import mask_rans, mask_rans_plain
from fedmrn_app.kernels.mask_rans_plain import LOWEST, STEPS, Evidence
from fedmrn_app.wire import mask_model, masks
from fedmrn_app.wire.mask_model import SideInformation
from tests.helpers import SHAPES, noisy_side

LANES = st.sampled_from([1, 8])
PLAIN = SimpleNamespace(**{**vars(mask_rans_plain), "lanes_of": mask_rans.lanes_of})


def fresh(lanes: int) -> NDArray[np.uint32]:
    return np.full(lanes, LOWEST, np.uint32)


def drawn(count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """Bits and their shares, some of them the least and the most there are."""
    random = np.random.default_rng(seed)
    shares = np.clip(random.normal(STEPS / 4, STEPS / 3, count), 1, STEPS - 1).astype(np.uint16)
    return (random.random(count) * STEPS < shares).astype(np.uint8), shares


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 200), st.integers(0, 2**32), LANES, st.booleans())
def test_compiled_coder_writes_and_reads_the_bytes_of_the_plain_one(
    count: int, seed: int, lanes: int, unlikely: bool
) -> None:
    bits, shares = drawn(count, seed)
    bits ^= np.uint8(unlikely)
    coded = []
    for coder in (mask_rans, mask_rans_plain):
        states, words = fresh(lanes), np.zeros(count + 3, np.uint16)
        start = coder.encode(bits, shares, states, words, count)
        coded.append((states, words, start))
    for ours, others in zip(*coded, strict=True):
        assert np.array_equal(ours, others)
    for coder in (mask_rans, mask_rans_plain):
        decoded, states = np.empty_like(bits), coded[0][0].copy()
        assert coder.decode(shares, states, coded[0][1], coded[0][2], decoded) == count
        assert np.array_equal(decoded, bits)
        assert np.array_equal(states, fresh(lanes))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 60), st.integers(0, 2**32), LANES)
def test_damaged_streams_are_read_alike_and_never_beyond_their_end(count: int, seed: int, lanes: int) -> None:
    random = np.random.default_rng(seed)
    shares = drawn(200, seed)[1]
    words = random.integers(0, 1 << 16, count, np.uint16)
    states = random.integers(LOWEST, 1 << 32, lanes, np.uint32)
    ends = []
    for coder in (mask_rans, mask_rans_plain):
        out, own = np.zeros(200, np.uint8), states.copy()
        end = coder.decode(shares, own, words, 0, out)
        assert end <= count
        ends.append((end, out.tolist(), own.tolist()) if end >= 0 else (end,))
    assert ends[0] == ends[1]


def test_wrong_lengths_are_refused() -> None:
    bits, shares = drawn(10, 0)
    with pytest.raises(ValueError, match="no room for 10 bits"):
        mask_rans.encode(bits, shares, fresh(1), np.zeros(9, np.uint16), 9)
    with pytest.raises(ValueError, match="10 shares for 9 bits"):
        mask_rans.decode(shares, fresh(1), np.zeros(9, np.uint16), 0, np.zeros(9, np.uint8))


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("trending", [False, True])
@pytest.mark.parametrize("scale", [1.0, 60000.0])
def test_compiled_shares_are_the_plain_ones(signed: bool, trending: bool, scale: float) -> None:
    """Two ways to the same numbers: loops compiled for this machine, and NumPy's operations one by one."""
    random = np.random.default_rng(1)
    shape = (60, 43)
    size = random.random(shape, np.float32)
    sign = np.copysign(np.float32(1), random.normal(size=shape)).astype(np.float32)
    trend = random.uniform(-1, 1, shape).astype(np.float32)
    bits = random.integers(0, 2, shape, np.uint8)
    evidence = Evidence(size, sign if signed else None, trend if trending else None)
    for ours, plain in zip(*(way.count_runs(evidence, bits) for way in (mask_rans, mask_rans_plain)), strict=True):
        assert np.array_equal(ours, plain)
    push, density = random.uniform(-1, 1, (2, 60)).astype(np.float32)
    for bend in (0.0, 0.7, 1000.0):
        c = (random.uniform(-scale, scale, 9) * STEPS / 4).astype(np.float32)
        ours, plain = (
            kernels.find_shares(evidence, c, np.float32(bend), push, density)
            for kernels in (mask_rans, mask_rans_plain)
        )
        assert np.array_equal(ours, plain)
        assert 1 <= ours.min() < ours.max() <= STEPS - 1


@pytest.mark.parametrize("flipped", [False, True])
def test_whole_masks_have_the_bytes_of_the_plain_form(flipped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    side = noisy_side((*SHAPES, (70, 250)))
    random = np.random.default_rng(2)
    turned = random.random(side.size.size) < 0.5 if flipped else None
    side = SideInformation(side.layout, side.size, side.sign, side.drift, turned)
    bits = random.random(side.size.size) < 0.5 - 0.4 * side.size
    body = masks.code_mask(bits, side)
    for module in (masks, mask_model):
        monkeypatch.setattr(module, "mask_rans", PLAIN)
    assert masks.code_mask(bits, side) == body
    if not flipped:
        assert np.array_equal(masks.decode_mask(body, side), bits)


@pytest.mark.parametrize("mean", [0.01, 0.15, 0.5])
def test_length_is_that_of_the_shares(mean: float) -> None:
    """The bits that the shares ask for, the lanes' states, and five in ten thousand."""
    random = np.random.default_rng(3)
    count = 1 << 20
    shares = np.clip(random.exponential(mean, count) * STEPS, 1, STEPS - 1).astype(np.uint16)
    p = shares / STEPS
    bits = (random.random(count) < p).astype(np.uint8)
    states, words = fresh(8), np.empty(count, np.uint16)
    length = 16 * (count - mask_rans.encode(bits, shares, states, words, count)) + 32 * states.size
    assert length < 1.0005 * -np.log2(np.where(bits, p, 1 - p)).sum() + 32 * states.size
