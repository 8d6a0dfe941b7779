"""Masked noise, made anew where it is needed: the same as from a whole vector of noise."""

import dataclasses

import numpy as np
import pytest

from fedmrn_app.layout import Layout
from fedmrn_app.methods.contribution import BLOCK
from fedmrn_app.methods.mask_decoding import AnyNoise, MaskedNoise, NoiseBlocks, ThresholdSide, UniformNoise, WholeNoise
from fedmrn_app.noise import DISTRIBUTIONS, Distribution, Noise, generate_noise
from fedmrn_app.wire.mask_model import Side, SideInformation, all_parts
from fedmrn_app.wire.masks import code_mask, decode_mask

LAYOUT = Layout(((40, 30, 3, 3), (7, 11), (300, 100), (90, 999)))
SEED, KEY = 5, 0x123456789ABCDEF
NOISE = Noise("uniform", 0.3)
WHOLE = WholeNoise(NOISE(SEED, LAYOUT.count))


def sides(*, flips: bool) -> tuple[ThresholdSide, ThresholdSide]:
    """With noise made for each piece, and with a vector of it."""
    trend = generate_noise(1, LAYOUT.count, "uniform", 1.0)
    scale = np.float32(1 / 0.3)
    first, second = (
        ThresholdSide(LAYOUT, noise, KEY, scale, flips, trend) for noise in (UniformNoise(SEED, 0.3), WHOLE)
    )
    return first, second


def whole(side: ThresholdSide) -> SideInformation:
    """The same in whole vectors."""
    size, sign, trend = np.empty((3, LAYOUT.count), np.float32)
    flipped = np.empty(LAYOUT.count, np.bool_)
    for part in all_parts(LAYOUT):
        evidence = side.evidence(part, slice(0, part.runs))
        assert evidence.sign is not None
        assert evidence.trend is not None
        part.view(size)[:], part.view(sign)[:], part.view(trend)[:] = evidence.size, evidence.sign, evidence.trend
        if evidence.flipped is not None:
            part.view(flipped)[:] = evidence.flipped
    return SideInformation(LAYOUT, size, sign, trend, flipped if side.flips else None)


@pytest.mark.parametrize("flips", [False, True])
def test_masks_have_the_same_bytes_by_pieces_and_by_vectors(flips: bool) -> None:
    made, held = sides(flips=flips)
    vectors = whole(held)
    every: list[Side] = [made, held, vectors]
    beyond = np.random.default_rng(0).random(LAYOUT.count) < 0.5 - 0.4 * vectors.size
    bits = beyond if vectors.flipped is None else beyond ^ vectors.flipped
    body, *others = (code_mask(bits, side) for side in every)
    assert set(others) == {body}
    for side in every:
        assert np.array_equal(decode_mask(body, side), bits)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_pieces_add_up_to_the_plain_sum(signed: bool, distribution: Distribution) -> None:
    random = np.random.default_rng(2)
    mask = random.random(LAYOUT.count) < 0.4
    noise = dataclasses.replace(NOISE, distribution=distribution)
    vector = noise(SEED, mask.size)
    before = random.standard_normal(mask.size, np.float32)
    expected = before + vector * (2 * mask.view(np.int8) - 1 if signed else mask) * np.float32(600)
    forms: list[AnyNoise] = [WholeNoise(vector), NoiseBlocks(noise, SEED)]
    if distribution == "uniform":
        forms.append(UniformNoise(SEED, noise.alpha))
    for form in forms:
        decoded = MaskedNoise(np.packbits(mask, bitorder="little"), form, signed)
        total = before.copy()
        for first in (BLOCK, 0, 3 * BLOCK):
            decoded.add_to(total[first : {BLOCK: 3 * BLOCK, 0: BLOCK}.get(first)], np.float32(600), first)
        assert total.tobytes() == expected.tobytes()
