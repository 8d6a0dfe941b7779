"""Levels as bytes: both forms give the same levels, the layout is fixed, and malformed bodies are refused."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmrn_app.methods.quantizers import lloyd_max, uniform
from fedmrn_app.wire.body import CODED, LANED, PLAIN, Body
from fedmrn_app.wire.eden_levels import decode_eden_levels, encode_eden_levels, max_eden_bytes
from fedmrn_app.wire.entropy import categorical
from tests.helpers import GAUSSIAN, codes_every_symbol
from tests.wire.refusals import refusal

COUNT = 10_001


def normal_levels(bits: int, count: int = COUNT) -> NDArray[np.uint8]:
    return lloyd_max(bits).quantize(GAUSSIAN[:count], np.float32(1))[0]


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_plain_levels_have_their_lowest_bit_first(bits: int) -> None:
    levels = normal_levels(bits, 77)
    whole = sum(int(level) << (bits * place) for place, level in enumerate(levels))
    body = encode_eden_levels(levels, lloyd_max(bits).cells, "packed")
    assert body.form == PLAIN
    assert bytes(body.data) == whole.to_bytes(max_eden_bytes(77, 1 << bits), "little")


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [1, 2, 77, COUNT])
def test_both_forms_round_trip(bits: int, count: int) -> None:
    cells = lloyd_max(bits).cells
    for levels in (normal_levels(bits, count), np.full(count, (1 << bits) - 1, np.uint8), np.zeros(count, np.uint8)):
        packed, auto = encode_eden_levels(levels, cells, "packed"), encode_eden_levels(levels, cells, "auto")
        assert len(auto) <= len(packed) == max_eden_bytes(count, 1 << bits)
        for body in (packed, auto):
            read = decode_eden_levels(body, count, cells)
            assert read.dtype == np.uint8
            assert np.array_equal(read, levels)


@pytest.mark.parametrize(("bits", "entropy"), [(2, 1.9111), (3, 2.8249), (4, 3.7653)])
def test_length_is_the_entropy(bits: int, entropy: float) -> None:
    levels = normal_levels(bits, GAUSSIAN.size)
    body = encode_eden_levels(levels, lloyd_max(bits).cells, "auto")
    assert body.form == LANED
    assert np.array_equal(decode_eden_levels(body, levels.size, lloyd_max(bits).cells), levels)
    assert 8 * len(body) / levels.size == pytest.approx(entropy, rel=0.002)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_every_level_has_a_code(bits: int) -> None:
    assert codes_every_symbol(categorical(lloyd_max(bits).cells.astype(np.float64)), 1 << bits)


def test_unlikely_levels_are_sent_plainly() -> None:
    cells = lloyd_max(3).cells
    assert encode_eden_levels(np.full(COUNT, 7, np.uint8), cells, "auto").form == PLAIN


def test_malformed_bodies_are_refused() -> None:
    cells, levels = lloyd_max(3).cells, normal_levels(3)
    coded, plain = (encode_eden_levels(levels, cells, coder) for coder in ("auto", "packed"))
    data = bytes(coded.data)
    wrong = [
        (Body(data + b"\0", CODED), "length"),
        (Body(data + b"\1\0\0\0", CODED), "trailing"),
        (Body(b"\1\0\0\0" + data, CODED), "trailing"),
        (Body(data[4:], CODED), "trailing"),
        (Body(data[:-4], CODED), "trailing"),
        (Body(data + bytes(4), CODED), "malformed"),
        (Body(plain.data, CODED), "length"),
        (Body(bytes(plain.data)[:-1]), "length"),
        (Body(bytes(plain.data)[:-1] + b"\xff"), "padding"),
        (Body(data, LANED), "trailing"),
        (Body(plain.data, LANED), "length"),
        (Body(plain.data, 3), "form"),
    ]
    for body, code in wrong:
        assert refusal(decode_eden_levels, body, COUNT, cells) == code


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_uniform_levels_round_trip_in_both_forms_and_take_their_entropy(bits: int) -> None:
    quantizer = uniform(bits)
    levels = quantizer.quantize(GAUSSIAN, np.float32(1))[0]
    packed, auto = (encode_eden_levels(levels, quantizer.cells, coder) for coder in ("packed", "auto"))
    for body in (packed, auto):
        assert np.array_equal(decode_eden_levels(body, levels.size, quantizer.cells), levels)
    assert len(packed) == max_eden_bytes(levels.size, len(quantizer.cells))
    assert 8 * len(auto) / levels.size == pytest.approx(bits, rel=0.002)
    assert codes_every_symbol(categorical(quantizer.cells.astype(np.float64)), len(quantizer.cells))


def test_numbers_beyond_the_last_level_are_refused() -> None:
    cells = uniform(2).cells  # 11 levels, whose numbers have four bits
    body = encode_eden_levels(np.full(8, 10, np.uint8), cells, "packed")
    assert refusal(decode_eden_levels, Body(b"\xaa" * 3 + b"\xba"), 8, cells) == "range"
    assert decode_eden_levels(body, 8, cells).tolist() == [10] * 8
