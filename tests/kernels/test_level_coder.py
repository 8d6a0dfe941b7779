"""The compiled coder of levels equals the plain one byte for byte, and its tables are those of every machine."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedmrn_app.kernels import level_coder, level_tables
from fedmrn_app.kernels.level_tables import MAX_LEVEL, UNIT, Shape, coded_shapes, squash_exact, stretch_exact
from fedmrn_app.layout import Layout
from tests.plain import level_coder as level_coder_plain

FORMS = (level_coder, level_coder_plain)
LAYOUT = Layout(((4, 5, 3, 3), (7, 11), (1, 1), (5,), (0, 3), (2, 1, 3, 5), (4, 6, 1, 1), (1, 1, 9, 9)))
SHAPES = coded_shapes(LAYOUT)


def random_values(seed: int, scale: float) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    """Return values with heavy tails, and trends."""
    random = np.random.default_rng(seed)
    values = np.clip(random.standard_t(3, LAYOUT.count) * scale, -MAX_LEVEL * UNIT, MAX_LEVEL * UNIT)
    return values.astype(np.int32), random.integers(-15, 16, LAYOUT.count).astype(np.int8)


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from([0.0, 20.0, 150.0, 1000.0, 1e5, 3e7]), st.sampled_from([0, 41]),
    st.integers(0, 3048),
)  # fmt: skip
def test_compiled_coder_equals_the_plain_one(seed: int, scale: float, price: int, first: int) -> None:
    values, trends = random_values(seed, scale)
    (levels, words), (plain_levels, plain_words) = (form.encode(values, trends, SHAPES, price, first) for form in FORMS)
    assert np.array_equal(levels, plain_levels)
    assert np.array_equal(words, plain_words)
    if price == 0:
        assert np.abs(levels - values / UNIT).max() <= 1  # zeros up to one step, as a block of small values costs
    for form in FORMS:
        decoded = form.decode(words, trends, SHAPES, first)
        assert decoded is not None
        assert np.array_equal(decoded, levels)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 40), st.integers(0, 2**32))
def test_damaged_words_are_decoded_alike(count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    words = random.integers(0, 1 << 16, count).astype(np.uint16)
    trends = random_values(seed, 1)[1]
    compiled, plain = (form.decode(words, trends, SHAPES, 300) for form in FORMS)
    if compiled is None or plain is None:  # the compiled one stops at the first row beyond the end
        assert compiled is plain
        return
    assert np.array_equal(compiled, plain)
    assert np.abs(compiled.astype(np.int64)).max() <= MAX_LEVEL


def test_the_buffer_of_words_grows_where_levels_take_more_than_a_word_each() -> None:
    random = np.random.default_rng(0)
    layout = Layout(((400,),))
    values = (random.integers(-MAX_LEVEL, MAX_LEVEL, 400) * UNIT).astype(np.int32)
    trends = np.zeros(400, np.int8)
    levels, words = level_coder.encode(values, trends, coded_shapes(layout), 0, 0)
    assert np.array_equal(levels, values // UNIT)
    assert words.size > 400 // 2 + 64
    decoded = level_coder.decode(words, trends, coded_shapes(layout), 0)
    assert decoded is not None
    assert np.array_equal(decoded, levels)


@pytest.mark.parametrize("exact", [stretch_exact, squash_exact], ids=["stretch", "squash"])
def test_no_entry_of_a_table_is_so_close_to_a_half_that_rounding_is_in_doubt(exact: object) -> None:
    assert callable(exact)
    values = exact()
    assert np.abs(values - np.floor(values) - 0.5).min() > 1e-6
    assert np.abs(values).max() < 1 << 17  # so that 1e-6 is ten thousand times a float64's last digit


def test_logarithms_are_exact() -> None:
    for x in (1, 2, 3, 4, 5, 7, 255, 256, 16383):
        quarter = int(level_tables.LOGS[x])
        assert 2**quarter <= x**4 < 2 ** (quarter + 1)


def test_every_element_belongs_to_one_block() -> None:
    met = np.zeros(LAYOUT.count, np.int64)
    for fields in SHAPES.tolist():
        shape = Shape(*fields)
        for row in range(shape.rows):
            for block in range(shape.blocks):
                for k in range(shape.elements):
                    element = block * shape.block_step + k * shape.element_step
                    if element < shape.length:
                        met[shape.start + row * shape.length + element] += 1
    assert (met == 1).all()
