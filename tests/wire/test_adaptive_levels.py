"""Levels are read back exactly, in fewer bits than their own entropy, and damaged ones are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmrn_app.errors import PayloadError
from fedmrn_app.kernels.level_tables import MAX_LEVEL
from fedmrn_app.layout import Layout
from fedmrn_app.wire.adaptive_levels import (
    CodedLevels,
    Levels,
    Trends,
    decode_levels,
    encode_levels,
    level_body,
    max_level_bytes,
    quantize,
    read_levels,
    trends_of,
)
from fedmrn_app.wire.body import CODED, PLAIN, Body
from tests.wire.refusals import refusal

SHAPES = st.lists(
    st.sampled_from([(), (1,), (9,), (3, 17), (4, 5, 3, 3), (2, 3, 1, 1), (2, 2, 9, 9), (0, 4), (3, 2, 2)]), max_size=5
)


def random_levels(layout: Layout, seed: int, scale: float) -> tuple[Levels, Trends]:
    random = np.random.default_rng(seed)
    levels = np.clip(random.standard_t(2, layout.count) * scale, -MAX_LEVEL, MAX_LEVEL).astype(np.int16)
    return levels, trends_of(random.uniform(-1, 1, layout.count).astype(np.float32))


@settings(max_examples=100, deadline=None)
@given(SHAPES, st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 1.0, 30.0, 1e6]), st.sampled_from(["auto", "packed"]))
def test_round_trip(shapes: list[tuple[int, ...]], seed: int, scale: float, coder: str) -> None:
    layout = Layout(tuple(shapes))
    levels, trends = random_levels(layout, seed, scale)
    data = encode_levels(levels, layout, trends)
    assert data == encode_levels(levels, layout, trends)
    body = level_body(CodedLevels(levels, data), "packed" if coder == "packed" else "auto")
    assert len(body) <= max_level_bytes(layout.count)
    assert body.form == PLAIN or coder == "auto"
    assert np.array_equal(read_levels(body, layout, trends), levels)


def structured(seed: int) -> tuple[Layout, Levels, Trends]:
    """Levels that are large in some rows and columns, and where weights have moved far."""
    random = np.random.default_rng(seed)
    layout = Layout(((64, 64, 3, 3),))
    sizes = np.exp(
        random.normal(size=(64, 1, 1)) + random.normal(size=(1, 1, 64)) + random.normal(size=(64, 9, 64)) / 2
    )
    sizes = sizes.reshape(-1) * 0.2
    levels = np.rint(random.laplace(size=sizes.size) * sizes).astype(np.int16)
    return layout, levels, trends_of((random.choice([-1, 1], sizes.size) * sizes / (sizes + 1)).astype(np.float32))


def test_side_information_and_context_spare_bits() -> None:
    layout, levels, trends = structured(0)
    shares = np.unique(levels, return_counts=True)[1] / levels.size
    entropy = -(shares * np.log2(shares)).sum()
    known = len(encode_levels(levels, layout, trends)) * 8 / levels.size
    unknown = len(encode_levels(levels, layout, np.zeros_like(trends))) * 8 / levels.size
    assert known < 0.9 * unknown
    assert unknown < 0.9 * entropy


def test_a_price_spares_bits_at_the_same_error() -> None:
    layout, levels, trends = structured(1)
    x = levels * np.float32(0.01) + np.random.default_rng(2).normal(size=levels.size).astype(np.float32) * 0.003
    spent = []
    for price in (0.0, 0.11):
        steps = np.geomspace(0.005, 0.05, 12)
        coded = [quantize(x, step, layout, trends, price) for step in steps]
        errors = [float(np.square(x - step * c.levels).sum()) for step, c in zip(steps, coded, strict=True)]
        spent.append(np.interp(np.square(x).sum() / 4, errors, [len(c.data) for c in coded]))
    assert spent[1] < 0.97 * spent[0]


def test_damaged_levels_are_refused() -> None:
    layout, levels, trends = structured(3)
    data = encode_levels(levels, layout, trends)
    for place in (1, 5, 9, len(data) // 2):
        changed = data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]
        with pytest.raises(PayloadError):
            decode_levels(changed, layout, trends)
    assert refusal(decode_levels, data, layout, np.roll(trends, 1)) == "levels-checksum"
    assert refusal(decode_levels, data[:3], layout, trends) == "length"
    assert refusal(decode_levels, data[:40], layout, trends) == "length"
    assert refusal(decode_levels, data + b"\0", layout, trends) == "levels-form"
    assert refusal(decode_levels, b"\xff" + data[1:], layout, trends) == "levels-form"
    assert refusal(read_levels, Body(b"\x11", PLAIN), layout, trends) == "levels-form"
    assert refusal(read_levels, Body(b"", PLAIN), layout, trends) == "levels-form"
    assert refusal(read_levels, Body(b"\x02", PLAIN), layout, trends) == "length"
    assert refusal(read_levels, Body(data, CODED + 1), layout, trends) == "form"
    beyond = Body(bytes([16]) + b"\xff\xff", PLAIN)
    assert refusal(read_levels, beyond, Layout(((1,),)), trends[:1]) == "levels-form"
