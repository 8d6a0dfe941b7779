"""Rows that came back as they were sent, and zeros, arrive as they are."""

import zlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.plugin.arrays import to_values
from fedmrn_app.plugin.kept import pack_kept, put_back
from tests.plugin.test_replies import reply_of, with_metrics

DRAW = np.random.default_rng(0)
BASE: dict[str, NDArray[Any]] = {
    name: DRAW.normal(0, 1, shape).astype(np.float32)
    for name, shape in {"plain": (20, 30), "rows": (50, 8), "zeros": (8, 3, 5, 5), "both": (30, 40)}.items()
}


def trained() -> dict[str, NDArray[Any]]:
    after = {name: value + DRAW.normal(0, 0.1, value.shape).astype(np.float32) for name, value in BASE.items()}
    after["rows"][::3] = BASE["rows"][::3]
    after["zeros"][DRAW.random(after["zeros"].shape) < 0.3] = 0
    after["both"][:4] = BASE["both"][:4]
    after["both"][4:, ::2] = 0
    return after


def test_rows_and_zeros_are_put_back() -> None:
    after, names = trained(), list(BASE)
    data = pack_kept(names, BASE, after)
    found = {name: value + 1 for name, value in after.items()}
    put_back(data, names, BASE, found)
    for name, value in found.items():
        same = (after[name] == BASE[name]) | (after[name] == 0)
        np.testing.assert_array_equal(value[same], after[name][same])
        np.testing.assert_array_equal(value[~same], after[name][~same] + 1)
    assert pack_kept(["plain"], BASE, after) == b""
    assert pack_kept([], BASE, after) == b""


@pytest.mark.parametrize("method", [None, "eden", "quantized", "topk"])
def test_they_arrive_as_in_plain_flower(method: str | None) -> None:
    after = trained()
    content = reply_of({"arrays": BASE}, lambda r: with_metrics(arrays=after), plug_in=True, method=method, rounds=1)
    for name, value in to_values(content.array_records["arrays"]).items():
        found: Any = value
        kept = (after[name] == 0) if name in ("zeros", "both") else np.zeros(found.shape, np.bool_)
        if name in ("rows", "both"):
            kept |= (after[name] == BASE[name]).all(1, keepdims=True)
        assert kept.any() == (name != "plain")
        np.testing.assert_array_equal(found[kept], after[name][kept])
        assert not np.array_equal(found, after[name])


@pytest.mark.parametrize(
    "data",
    [
        b"none",
        zlib.compress(b""),
        zlib.compress(b"\0\0\0"),
        zlib.compress(b"\4\0\0\0"),
        zlib.compress(b"\1\0\0\0"),
        zlib.compress(b"\1\0\0\0" + bytes(4)),
        zlib.compress(bytes(10**6)),
        zlib.compress(b"\1\0\0\0" + bytes(3))[:-1],
    ],
)
def test_malformed_bits_are_refused(data: bytes) -> None:
    with pytest.raises(PayloadError) as error:
        put_back(data, list(BASE), BASE, {name: value.copy() for name, value in BASE.items()})
    assert error.value.code in ("kept", "length")


def test_the_least_that_is_well_formed_is_read() -> None:
    found = {name: value + 1 for name, value in BASE.items()}
    put_back(zlib.compress(b"\1\0\0\0" + b"\x80\0\0"), list(BASE), BASE, found)
    np.testing.assert_array_equal(found["plain"][0], BASE["plain"][0])
    np.testing.assert_array_equal(found["plain"][1:], BASE["plain"][1:] + 1)
