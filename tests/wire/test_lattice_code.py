"""Lattices as bytes: every base gives the same one, lengths are near the entropy, and malformed bytes are refused."""

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmrn_app.errors import PayloadError
from fedmrn_app.wire.entropy import LONG
from fedmrn_app.wire.lattice import FAR, Lattice
from fedmrn_app.wire.lattice_code import ALIKE, DECAY, SIGNS, TABLE, decode_lattice, encode_lattice
from tests.wire.refusals import refusal

SIZES = [300, 5000, 1, 0, 40]
COUNT = sum(SIZES)
RANDOM = np.random.default_rng(3)
STEPS = np.array([0.5, 0.25, 1, 1, 0.125], np.float32)


def lattice_of(counts: np.ndarray, steps: np.ndarray = STEPS) -> Lattice:
    return Lattice(steps, counts.astype(np.int32))


BASE = lattice_of(np.rint(RANDOM.standard_normal(COUNT) * 4))
MOVED = lattice_of(np.rint(BASE.counts * 1.05 + RANDOM.standard_normal(COUNT) * 0.6))
DISTANT = lattice_of(np.where(RANDOM.random(COUNT) < 0.01, RANDOM.integers(-FAR, FAR, COUNT), BASE.counts))
OTHER_STEPS = lattice_of(MOVED.counts, STEPS * np.array([1, 2, 1, 1, 2], np.float32))
ZEROS = lattice_of(np.zeros(COUNT))
EXTREME = lattice_of(np.full(COUNT, FAR))
LATTICES = [BASE, MOVED, DISTANT, OTHER_STEPS, ZEROS, EXTREME, lattice_of(-EXTREME.counts)]


@pytest.mark.parametrize("base", [None, *LATTICES])
@pytest.mark.parametrize("lattice", LATTICES)
@pytest.mark.parametrize("long", [0, LONG])
def test_every_base_gives_the_same_grid(
    lattice: Lattice, base: Lattice | None, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmrn_app.wire.entropy.LONG", long)
    data = encode_lattice(lattice, SIZES, base)
    assert (data[0] & LANED > 0) == (long == 0)
    for held in (base, None if base is None else base.compact()):
        read = decode_lattice(data, SIZES, held)
        assert np.array_equal(read.counts, lattice.counts)
        assert np.array_equal(read.steps, lattice.steps)


def entropy_bytes(symbols: np.ndarray) -> float:
    counts = np.unique(symbols, return_counts=True)[1]
    return float(-(counts * np.log2(counts / counts.sum())).sum() / 8)


def test_length_is_near_the_entropy() -> None:
    whole = sum(entropy_bytes(part) for part in np.split(MOVED.counts, np.cumsum(SIZES)[:-1]))
    assert len(encode_lattice(MOVED, SIZES)) < 1.02 * whole + 150
    moves = MOVED.counts - BASE.counts
    by_sign = sum(
        entropy_bytes(moves[300:5300][np.sign(BASE.counts[300:5300]) == sign]) for sign in (-1, 0, 1)
    ) + entropy_bytes(moves[:300])  # fmt: skip
    coded = encode_lattice(MOVED, SIZES, BASE)
    assert len(coded) < 1.02 * by_sign + 150
    assert by_sign < 0.97 * entropy_bytes(moves)
    assert len(encode_lattice(BASE, SIZES, BASE)) == len(SIZES)
    assert len(encode_lattice(ZEROS, SIZES)) == 5 * len(SIZES)


@pytest.mark.parametrize(
    ("symbols", "kind"),
    [
        (np.zeros(5000), ALIKE),
        (RANDOM.choice([3, 5, 9, 100], 5000), TABLE),
        (np.sign(BASE.counts[:5000]) * 2, SIGNS),
        (RANDOM.integers(-1, 2, 9), DECAY),
    ],
)
def test_the_shortest_kind_is_chosen(symbols: np.ndarray, kind: int) -> None:
    sizes = [symbols.size]
    base = Lattice(STEPS[:1], BASE.counts[: symbols.size])
    moved = Lattice(STEPS[:1], base.counts + symbols.astype(np.int32))
    data = encode_lattice(moved, sizes, base)
    assert data[0] & 3 == kind
    assert np.array_equal(decode_lattice(data, sizes, base).counts, moved.counts)


def head(first: int, step: float = 1.0, rest: bytes = b"") -> bytes:
    return bytes([first]) + struct.pack("<f", step) + rest


STEP, ESCAPED, LANED = 4, 8, 16
REFUSED = {
    "empty": (b"", "length"),
    "half a step": (head(STEP)[:-1], "length"),
    "no step and no base": (bytes([ALIKE]), "malformed"),
    "signs without a base": (head(SIGNS | STEP), "malformed"),
    "unknown bits": (head(32), "malformed"),
    "lanes without states": (head(STEP | LANED), "length"),
    "a state that is too small": (head(STEP | LANED, rest=bytes(64)), "malformed"),
    "step 0": (head(STEP, 0.0), "malformed"),
    "step -1": (head(STEP, -1.0), "malformed"),
    "step nan": (head(STEP, float("nan")), "malformed"),
    "step inf": (head(STEP, float("inf")), "malformed"),
    "more escapes than elements": (head(STEP | ESCAPED | TABLE, rest=struct.pack("<I", 11)), "malformed"),
    "escapes without a table": (head(STEP | ESCAPED | DECAY, rest=struct.pack("<I", 1)), "malformed"),
    "table from 5 to 3": (head(STEP | TABLE, rest=struct.pack("<bb", 5, 3)), "malformed"),
    "table from -128 to 3": (head(STEP | TABLE, rest=struct.pack("<bb", -128, 3)), "malformed"),
    "table without symbols": (head(STEP | TABLE, rest=struct.pack("<bb", 0, -1)), "malformed"),
    "short table": (head(STEP | TABLE, rest=struct.pack("<bb", -1, 1) + b"\1\1"), "length"),
    "escapes that are not there": (
        head(STEP | ESCAPED | TABLE, rest=struct.pack("<Ibb", 9, 0, 0) + b"\1\0" + b"\0" * 36),
        "malformed",
    ),
    "large counts": (
        head(STEP | ESCAPED | TABLE, rest=struct.pack("<Ibb", 10, 0, -1) + b"\1" + b"\xff\xff\xff\x7f" * 10),
        "range",
    ),
    "words after the end": (head(STEP | TABLE, rest=struct.pack("<bb", 2, 2) + b"\1" + b"\0\0\0\1"), "trailing"),
    "half a word": (head(STEP | TABLE, rest=struct.pack("<bb", 2, 2) + b"\1" + b"\0"), "length"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_malformed_lattices_are_refused(name: str) -> None:
    data, code = REFUSED[name]
    assert refusal(decode_lattice, data, [10]) == code


def test_lanes_are_announced_by_the_first_tensor_alone() -> None:
    assert refusal(decode_lattice, head(STEP) + head(STEP | LANED), [10, 10]) == "malformed"


def test_sums_beyond_the_limit_are_refused() -> None:
    data = encode_lattice(lattice_of(BASE.counts + 1), SIZES, BASE)
    assert refusal(decode_lattice, data, SIZES, EXTREME) == "range"


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_lattices_are_refused_or_bounded(data: st.DataObject) -> None:
    base = data.draw(st.sampled_from([None, BASE]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedmrn_app.wire.entropy.LONG", data.draw(st.sampled_from([0, LONG])))
        real = bytearray(encode_lattice(data.draw(st.sampled_from([MOVED, DISTANT, OTHER_STEPS])), SIZES, base))
    for _ in range(data.draw(st.integers(1, 4))):
        real[data.draw(st.integers(0, min(len(real) - 1, data.draw(st.sampled_from([60, 10_000])))))] = data.draw(
            st.integers(0, 255)
        )
    changed = bytes(real[: data.draw(st.integers(0, len(real)))]) + data.draw(st.binary(max_size=9))
    tracemalloc.start()
    try:
        read = decode_lattice(changed, SIZES, base)
    except PayloadError:
        return
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 40 * 4 * COUNT
    assert np.abs(read.counts.astype(np.int64)).max() <= FAR
    assert np.isfinite(read.steps).all()
    assert read.steps.min() > 0
