"""The downlink: weights are exact up to their type's precision, and malformed vectors are refused."""

from typing import get_args

import numpy as np
import pytest
import torch

from fedmrn_app.layout import slices
from fedmrn_app.wire.downlink import Elementwise, pack_downlink, unpack_downlink
from tests.wire.refusals import refusal

ELEMENTWISE = get_args(Elementwise)
SIZES = (32, 64, 1, 0, 200)
VECTOR = np.random.default_rng(0).standard_normal(sum(SIZES)).astype(np.float32)


@pytest.mark.parametrize(
    ("dtype", "error"), [("float32", 0), ("float16", 2**-11), ("bfloat16", 2**-8), ("int8", 0.5 / 127)]
)
def test_downlink_error(dtype: Elementwise, error: float) -> None:
    packed = pack_downlink(VECTOR, SIZES, dtype)
    read = unpack_downlink(packed, SIZES, dtype)
    assert read.dtype == np.float32
    scale = np.repeat([np.abs(VECTOR[part]).max(initial=0) for part in slices(SIZES)], SIZES)
    assert (np.abs(read - VECTOR) <= error * (scale if dtype == "int8" else np.abs(VECTOR)) * 1.0001).all()
    bytes_per_weight = {"float32": 4, "int8": 1}.get(dtype, 2)
    assert packed.nbytes == bytes_per_weight * VECTOR.size + (4 * len(SIZES) if dtype == "int8" else 0)
    for other in (packed[:-1], packed[None], packed.astype(np.int64), np.zeros(0, packed.dtype)):
        assert refusal(unpack_downlink, other, SIZES, dtype) == "shape"


def test_palette_is_exact() -> None:
    for vector in (VECTOR, np.round(VECTOR)):
        packed = pack_downlink(vector, SIZES, "palette")
        assert packed.dtype == np.uint8
        assert np.array_equal(unpack_downlink(packed, SIZES, "palette"), vector)
    assert packed.nbytes < VECTOR.size
    assert refusal(unpack_downlink, packed.view(np.int8), SIZES, "palette") == "shape"


@pytest.mark.parametrize("dtype", ELEMENTWISE)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(dtype: Elementwise, value: float) -> None:
    vector = VECTOR.copy()
    vector[3] = value
    if dtype == "int8":
        packed = pack_downlink(VECTOR, SIZES, dtype).copy()
        packed[4:8] = np.frombuffer(np.float32(value).tobytes(), np.uint8)
    elif dtype == "float16":
        packed = vector.astype(np.float16)
    else:
        packed = pack_downlink(vector, SIZES, dtype)
    assert refusal(unpack_downlink, packed, SIZES, dtype) == "not-finite"


def test_bfloat16_equals_pytorchs() -> None:
    expected = torch.from_numpy(VECTOR).bfloat16().view(torch.uint16).numpy()
    assert np.array_equal(pack_downlink(VECTOR, SIZES, "bfloat16"), expected)


@pytest.mark.parametrize("dtype", ELEMENTWISE)
def test_zeros_stay_zero(dtype: Elementwise) -> None:
    zero = np.zeros(sum(SIZES), np.float32)
    assert not unpack_downlink(pack_downlink(zero, SIZES, dtype), SIZES, dtype).any()
