"""The dense part: values are exact up to a step, and malformed bytes are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import slices
from fedmrn_app.wire.dense import DENSE_BITS, max_dense_bytes, pack_dense, unpack_dense
from tests.wire.refusals import refusal

SIZES = (32, 64, 1, 0, 200)
RANDOM = np.random.default_rng(0)
KNOWN = RANDOM.standard_normal(sum(SIZES)).astype(np.float32)
MOVED = KNOWN + np.float32(0.01) * RANDOM.standard_normal(sum(SIZES)).astype(np.float32)


@pytest.mark.parametrize("bits", DENSE_BITS)
def test_error_is_at_most_one_step(bits: int) -> None:
    data = pack_dense(MOVED, KNOWN, SIZES, bits)
    assert len(data) <= max_dense_bytes(SIZES, bits)
    read = unpack_dense(data, KNOWN, SIZES, bits)
    for part in slices(SIZES):
        moved = np.abs(MOVED[part] - KNOWN[part]).max(initial=0)
        step = {32: 0, 16: np.abs(MOVED[part]).max(initial=0) * 2**-11}.get(bits, moved / (2 ** (bits - 1) - 1))
        assert (np.abs(read[part] - MOVED[part]) <= 1.001 * step).all()


@pytest.mark.parametrize("bits", DENSE_BITS)
def test_an_empty_dense_part_takes_no_bytes(bits: int) -> None:
    empty = np.zeros(0, np.float32)
    assert pack_dense(empty, empty, [], bits) == b""
    assert unpack_dense(b"", empty, [], bits).shape == (0,)
    assert refusal(unpack_dense, b"\0\0\0\0", empty, [], bits) in ("length", "malformed")


def test_fewer_bits_take_fewer_bytes() -> None:
    sizes = [len(pack_dense(MOVED, KNOWN, SIZES, bits)) for bits in DENSE_BITS]
    assert sizes == sorted(sizes)
    assert 8 * (sizes[2] - 5 * len(SIZES)) / KNOWN.size < 6


@pytest.mark.parametrize("bits", DENSE_BITS)
def test_a_falling_variance_stays_positive_and_close(bits: int) -> None:
    """In a first round running variances start at one, and those of the data are about a thousandth of that."""
    known, values = np.ones(200, np.float32), RANDOM.uniform(1e-4, 1e-3, 200).astype(np.float32)
    read = unpack_dense(pack_dense(values, known, [200], bits), known, [200], bits)
    assert (read >= 0).all()
    assert np.abs(read - values).max() <= (1e-3 / (2 ** (bits - 1) - 1) if bits < 16 else 1e-6)


@pytest.mark.parametrize("bits", DENSE_BITS)
@pytest.mark.parametrize("value", [0.0, 1.0, -3e38, 1e-40])
def test_extreme_values(bits: int, value: float) -> None:
    for before in (0.0, 1.0, value):
        x, known = np.full(7, value, np.float32), np.full(7, before, np.float32)
        read = unpack_dense(pack_dense(x, known, [3, 4], bits), known, [3, 4], bits)
        if bits != 16:  # the largest float16 is 65504
            np.testing.assert_allclose(read, x, rtol=1e-5, atol=1e-9)


_COLUMNS = np.geomspace(1e-3, 1e4, 64).astype(np.float32)
# batch norm of inputs of mixed scale: means and variances, between tensors that one step suits
_MIXED_SIZES = (32, 64, 64, 8)
_MIXED_KNOWN = np.concatenate([KNOWN[:32], np.zeros(64), np.ones(64), KNOWN[:8]]).astype(np.float32)
_MIXED = np.concatenate([MOVED[:32], 3 * _COLUMNS, np.square(_COLUMNS), MOVED[:8]]).astype(np.float32)


@pytest.mark.parametrize("bits", [bits for bits in DENSE_BITS if bits < 16])
def test_values_of_mixed_scale_are_exact(bits: int) -> None:
    """The small variances would become zero, and the inputs that belong to them a hundred times as large."""
    data = pack_dense(_MIXED, _MIXED_KNOWN, _MIXED_SIZES, bits)
    assert len(data) <= max_dense_bytes(_MIXED_SIZES, bits)
    read = unpack_dense(data, _MIXED_KNOWN, _MIXED_SIZES, bits)
    for part, exact in zip(slices(_MIXED_SIZES), (False, True, True, False), strict=True):
        assert np.array_equal(read[part], _MIXED[part]) == exact
    plain = pack_dense(_MIXED, _MIXED_KNOWN, _MIXED_SIZES, bits, exact=False)
    assert len(plain) < len(data)
    assert (unpack_dense(plain, _MIXED_KNOWN, _MIXED_SIZES, bits)[96:160] == 0).sum() > 20


@pytest.mark.parametrize("size", [0, 9, 20, 40, 275, 400, 531])
def test_exact_values_that_are_cut_off_are_refused(size: int) -> None:
    data = pack_dense(_MIXED, _MIXED_KNOWN, _MIXED_SIZES, 6)
    assert refusal(unpack_dense, data[:size], _MIXED_KNOWN, _MIXED_SIZES, 6) in ("length", "malformed", "not-finite")


@pytest.mark.parametrize("bits", DENSE_BITS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(bits: int, value: float) -> None:
    x = MOVED.copy()
    x[40] = value
    data = pack_dense(x, KNOWN, SIZES, bits)
    if bits == 16 and np.isinf(value):
        assert np.isfinite(unpack_dense(data, KNOWN, SIZES, bits)).all()  # sent as the largest float16
        return
    assert refusal(unpack_dense, data, KNOWN, SIZES, bits) == "not-finite"


@settings(max_examples=200, deadline=None)
@given(data=st.data(), bits=st.sampled_from(DENSE_BITS))
def test_damaged_dense_parts_are_refused_or_finite(data: st.DataObject, bits: int) -> None:
    values, known, sizes = data.draw(st.sampled_from([(MOVED, KNOWN, SIZES), (_MIXED, _MIXED_KNOWN, _MIXED_SIZES)]))
    real = bytearray(pack_dense(values, known, sizes, bits))
    for _ in range(data.draw(st.integers(0, 4))):
        real[data.draw(st.integers(0, len(real) - 1))] ^= data.draw(st.integers(1, 255))
    changed = bytes(real[: data.draw(st.integers(0, len(real)))]) + data.draw(st.binary(max_size=9))
    try:
        read = unpack_dense(changed, known, sizes, bits)
    except PayloadError:
        return
    assert read.shape == known.shape
    assert np.isfinite(read).all()
