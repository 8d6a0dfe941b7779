"""Coded masks: exact, short where bits can be predicted, and hostile ones are refused."""

import dataclasses
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Layout, Shape
from fedmrn_app.learning.flat import state_sha256
from fedmrn_app.noise import generate_noise
from fedmrn_app.wire import mask_model
from fedmrn_app.wire.body import CODED, CODERS, PLAIN, Body
from fedmrn_app.wire.mask_model import SideInformation
from fedmrn_app.wire.masks import code_mask, decode_mask, pack_mask, unpack_mask
from fedmrn_app.wire.primitives import pack_bits
from tests.helpers import final_state, noisy_side

SHAPES = ((64, 32, 3, 3), (5, 3), (40, 500), (1, 1), (8, 4, 5))
LAYOUT = Layout(SHAPES)


def draw(p: NDArray[np.floating], seed: int = 0) -> NDArray[np.bool_]:
    return np.random.default_rng(seed).random(p.size) < p


def entropy(p: NDArray[np.floating]) -> float:
    """Mean bits of independent bits with these probabilities."""
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return float(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)).mean())


@pytest.mark.parametrize("fields", [(), ("sign",), ("drift",), ("sign", "drift")])
@pytest.mark.parametrize("density", [0.0, 0.001, 0.3, 0.97, 1.0])
def test_round_trip(fields: tuple[str, ...], density: float) -> None:
    whole = noisy_side(SHAPES)
    side = SideInformation(LAYOUT, whole.size, **{field: getattr(whole, field) for field in fields})
    bits = draw(np.full(whole.size.size, density))
    assert np.array_equal(decode_mask(code_mask(bits, side), side), bits)


@pytest.mark.parametrize("fields", [(), ("sign", "drift", "inverted")])
def test_long_parts_have_the_same_bytes_in_one_piece_and_in_many(
    fields: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout((*SHAPES, (300, 400)))  # coefficients are fitted to every seventh bit of the last tensor
    whole = dataclasses.replace(noisy_side(layout.shapes), inverted=draw(np.full(layout.count, 0.2), 1))
    side = SideInformation(layout, whole.size, **{field: getattr(whole, field) for field in fields})
    bits = draw(0.5 - 0.4 * whole.size)
    body = code_mask(bits, side)
    monkeypatch.setattr(mask_model, "_PIECE", 1000)
    assert max(len(list(part.pieces())) for part in mask_model.all_parts(layout)) == 38
    assert code_mask(bits, side) == body
    assert np.array_equal(decode_mask(body, side), bits)


@pytest.mark.parametrize("shapes", [((1, 1),), ((3, 5),), ((9, 1), (1, 9)), ((2, 1, 3, 3),), ((300, 400),), SHAPES])
def test_round_trip_of_any_shape_in_either_form(shapes: tuple[Shape, ...]) -> None:
    for density in (0.5, 0.02):
        bits = draw(np.full(Layout(shapes).count, density))
        for coder in CODERS:
            body = pack_mask(bits, partial(noisy_side, shapes), coder)
            assert len(body) <= len(pack_bits(bits))
            assert density != 0.5 or shapes != SHAPES or body == Body(pack_bits(bits), PLAIN)
            assert np.array_equal(unpack_mask(body, bits.size, partial(noisy_side, shapes)), bits)


def test_length_is_the_entropy_where_the_side_information_tells_the_probability() -> None:
    """A mask whose probabilities have the form of the model takes at most 1% more bits than their entropy."""
    side = noisy_side(((1000, 1000),))
    assert side.drift is not None
    p = np.clip(0.5 - 0.4 * side.size + 0.3 * side.drift * side.size, 0, 1)
    bits = draw(p)
    assert 8 * len(code_mask(bits, side)) / p.size < 1.01 * entropy(p)


def test_row_densities_and_run_effects_are_learned_from_the_earlier_parts() -> None:
    side = noisy_side(((100, 64, 3, 3),))
    assert side.sign is not None
    flat = SideInformation(side.layout, np.ones_like(side.size))
    random = np.random.default_rng(3)
    rows = np.repeat(random.uniform(0.02, 0.5, 100), 64 * 9)
    best, naive = entropy(rows), entropy(np.full(1, rows.mean()))
    assert 8 * len(code_mask(draw(rows), flat)) / rows.size < best + 0.35 * (naive - best)
    effects = np.where(np.repeat(random.choice([-1, 1], 900), 64) == side.sign, 0.5, 0.1)
    best, naive = entropy(effects), entropy(np.full(1, 0.3))
    signed = SideInformation(side.layout, np.ones_like(side.size), side.sign)
    assert 8 * len(code_mask(draw(effects), signed)) / effects.size < best + 0.55 * (naive - best)


def test_useless_side_information_takes_almost_no_bits() -> None:
    bits = draw(np.full(1_000_000, 0.1))
    n = generate_noise(5, bits.size, "gaussian", 1.0)
    layout, sign = Layout(((1000, 1000),)), np.copysign(np.float32(1), n)
    side = SideInformation(layout, np.minimum(np.abs(n), 1), sign, np.zeros_like(n))
    assert 8 * len(code_mask(bits, side)) / bits.size < 1.005 * entropy(np.full(1, 0.1))


def test_masks_that_are_not_shorter_coded_are_packed() -> None:
    """A coded body of the length of a packed one is refused by the reader, so it is not written."""
    random, ties = np.random.default_rng(0), 0
    side = noisy_side(((30, 8), (30, 8)))
    for density in np.linspace(0.05, 0.5, 200):
        bits = random.random(480) < density
        ties += len(code_mask(bits, side)) == 60
        np.testing.assert_array_equal(unpack_mask(pack_mask(bits, lambda: side, "auto"), 480, lambda: side), bits)
    assert ties > 0


def test_other_side_information_is_detected() -> None:
    side = noisy_side(SHAPES)
    bits = draw(0.9 * side.size)
    body = pack_mask(bits, lambda: side, "auto")
    assert body.form == CODED
    moved = SideInformation(LAYOUT, side.size, side.sign, generate_noise(3, LAYOUT.count, "uniform", 1.0))
    with pytest.raises(PayloadError) as refusal:
        unpack_mask(body, bits.size, lambda: moved)
    assert refusal.value.code in ("mask-checksum", "mask-length")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_hostile_masks_are_refused(data: st.DataObject) -> None:
    side = noisy_side(((3, 50), (20, 30)))
    bits = draw(0.3 * side.size)
    real = bytearray(code_mask(bits, side))
    for _ in range(data.draw(st.integers(1, 4))):
        real[data.draw(st.integers(0, len(real) - 1))] ^= data.draw(st.integers(1, 255))
    body = bytes(real[: data.draw(st.integers(0, len(real)))]) + data.draw(st.binary(max_size=9))
    try:
        decoded = decode_mask(body, side)
    except PayloadError:
        return
    assert np.array_equal(decoded, bits)  # as after a change of a coefficient's last bit


def test_coding_changes_no_weight() -> None:
    """The final weights are the same with and without the coder."""
    run = "rounds=2 clients=2 clients_per_round=2 local.epochs=1 uplink.dense_bits=32 uplink.bits=null uplink.coder="
    assert len({state_sha256(*final_state(tuple(f"{run}{coder}".split()))) for coder in CODERS}) == 1
