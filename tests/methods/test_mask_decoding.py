"""Masked noise that is generated where it is needed equals masked noise from a vector, bit for bit."""

import dataclasses

import numpy as np
import pytest

from fedmrn_app.kernels.thresholds import Thresholds
from fedmrn_app.layout import BLOCK, Layout
from fedmrn_app.methods.mask_decoding import MaskedNoise, ReplyNoise, ThresholdSideInfo
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import DISTRIBUTIONS, Distribution, Noise, generate_noise
from fedmrn_app.wire.mask_model import SideInformation, SideInfoSource, all_parts
from fedmrn_app.wire.masks import code_mask, decode_mask

LAYOUT = Layout(((40, 30, 3, 3), (7, 11), (300, 100), (90, 999)))
SEED, KEY = 5, 0x123456789ABCDEF
NOISE = Noise("uniform", 0.3)


def thresholds(noise: ReplyNoise, signed: bool) -> ThresholdSideInfo:
    drift = generate_noise(1, LAYOUT.count, "uniform", 1.0)
    of_mask = Thresholds(KEY, np.float32(1 / 0.3), signed)
    known = SharedContext(LAYOUT, drift, np.zeros_like(drift))
    return ThresholdSideInfo(layout=LAYOUT, noise=noise, thresholds=of_mask, drift=known.drift_of)


def as_vectors(side_info: ThresholdSideInfo) -> SideInformation:
    size, sign, drift = np.empty((3, LAYOUT.count), np.float32)
    inverted = np.empty(LAYOUT.count, np.bool_)
    for part in all_parts(LAYOUT):
        block = side_info.read(part, slice(0, part.runs))
        assert block.sign is not None
        assert block.trend is not None
        part.view(size)[:], part.view(sign)[:], part.view(drift)[:] = block.size, block.sign, block.trend
        if block.flipped is not None:
            part.view(inverted)[:] = block.flipped
    return SideInformation(LAYOUT, size, sign, drift, inverted if side_info.thresholds.signed else None)


@pytest.mark.parametrize("signed", [False, True])
def test_masks_have_the_same_bytes_by_pieces_and_by_vectors(signed: bool) -> None:
    stored = ReplyNoise(NOISE, SEED, NOISE(SEED, LAYOUT.count))
    generated, held = (thresholds(noise, signed) for noise in (ReplyNoise(NOISE, SEED), stored))
    vectors = as_vectors(held)
    every: list[SideInfoSource] = [generated, held, vectors]
    exceeded = np.random.default_rng(0).random(LAYOUT.count) < 0.5 - 0.4 * vectors.size
    bits = exceeded if vectors.inverted is None else exceeded ^ vectors.inverted
    body, *others = (code_mask(bits, side_info) for side_info in every)
    assert set(others) == {body}
    assert all(np.array_equal(decode_mask(body, side_info), bits) for side_info in every)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_pieces_add_up_to_the_plain_sum(signed: bool, distribution: Distribution) -> None:
    random = np.random.default_rng(2)
    mask = random.random(LAYOUT.count) < 0.4
    noise = dataclasses.replace(NOISE, distribution=distribution)
    vector = noise(SEED, mask.size)
    before = random.standard_normal(mask.size, np.float32)
    expected = before + vector * (2 * mask.view(np.int8) - 1 if signed else mask) * np.float32(600)
    for source in (ReplyNoise(noise, SEED), ReplyNoise(noise, SEED, vector)):
        masked = MaskedNoise(np.packbits(mask, bitorder="little"), source, signed)
        total = before.copy()
        for first in (BLOCK, 0, 3 * BLOCK):
            masked.add_to(total[first : {BLOCK: 3 * BLOCK, 0: BLOCK}.get(first)], np.float32(600), first)
        assert total.tobytes() == expected.tobytes()
