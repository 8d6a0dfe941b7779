"""Coded masks: exact, small where something can be known, never a surprise to the reader."""

import time
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.noise import Float32Array, generate_noise
from fedmrn_app.shapes import Shapes, sizes_of
from fedmrn_app.wire.bits import pack_bits
from fedmrn_app.wire.body import CODED, CODERS, PLAIN, Body
from fedmrn_app.wire.entropy import categorical, decode_runs, encode_runs, read_words, write_words
from fedmrn_app.wire.masks import LEVELS, Evidence, _model, code_mask, decode_mask, pack_mask, softsign, unpack_mask
from fedmrn_app.wire.trits import max_trit_bytes, pack_trits, unpack_trits
from tests.reference import reference_run

SHAPES = ((64, 32, 3, 3), (5, 3), (40, 500), (1, 1), (8, 4, 5))


def noise(shapes: Shapes, seed: int = 1) -> Float32Array:
    return generate_noise(seed, sum(sizes_of(shapes)), "uniform", 1.0)


def evidence(shapes: Shapes = SHAPES) -> Evidence:
    n = noise(shapes)
    sign = np.copysign(np.float32(1), n)
    return Evidence(shapes, np.abs(n), sign, noise(shapes, 2) * sign)


def draw(p: NDArray[np.floating], seed: int = 0) -> NDArray[np.bool_]:
    return np.random.default_rng(seed).random(p.size) < p


def entropy(p: NDArray[np.floating]) -> float:
    """Mean bits of independent bits with these probabilities."""
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return float(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)).mean())


@pytest.mark.parametrize("parts", [(), ("sign",), ("trend",), ("sign", "trend")])
@pytest.mark.parametrize("density", [0.0, 0.001, 0.3, 0.97, 1.0])
def test_round_trip(parts: tuple[str, ...], density: float) -> None:
    whole = evidence()
    known = Evidence(SHAPES, whole.size, **{part: getattr(whole, part) for part in parts})
    bits = draw(np.full(whole.size.size, density))
    assert np.array_equal(decode_mask(code_mask(bits, known), known), bits)


@pytest.mark.parametrize("shapes", [((1, 1),), ((3, 5),), ((9, 1), (1, 9)), ((2, 1, 3, 3),), ((300, 400),), SHAPES])
def test_round_trip_of_any_shape_in_either_form(shapes: Shapes) -> None:
    for density in (0.5, 0.02):
        bits = draw(np.full(sum(sizes_of(shapes)), density))
        for coder in ("auto", "packed"):
            body = pack_mask(bits, partial(evidence, shapes), coder)  # type: ignore[arg-type]
            assert len(body) <= len(pack_bits(bits))
            assert np.array_equal(unpack_mask(body, bits.size, partial(evidence, shapes)), bits)


def test_length_is_the_entropy_where_the_evidence_tells_the_probability() -> None:
    """A mask whose probabilities have the model's own form takes as many bits as they leave open, and 1% more."""
    shapes = ((1000, 1000),)
    known = evidence(shapes)
    assert known.trend is not None
    p = np.clip(0.5 - 0.4 * known.size + 0.3 * known.trend * known.size, 0, 1)
    bits = draw(p)
    assert 8 * len(code_mask(bits, known)) / p.size < 1.01 * entropy(p)


def test_length_follows_rows_and_runs_that_nobody_knew() -> None:
    """Row densities and the runs' pushes are learned from the first columns."""
    shapes = ((100, 64, 3, 3),)
    known = evidence(shapes)
    assert known.sign is not None
    flat = Evidence(shapes, np.ones_like(known.size))
    random = np.random.default_rng(3)
    rows = np.repeat(random.uniform(0.02, 0.5, 100), 64 * 9)
    best, naive = entropy(rows), entropy(np.full(1, rows.mean()))
    assert 8 * len(code_mask(draw(rows), flat)) / rows.size < best + 0.35 * (naive - best)
    pushes = np.where(np.repeat(random.choice([-1, 1], 900), 64) == known.sign, 0.5, 0.1)
    best, naive = entropy(pushes), entropy(np.full(1, 0.3))
    signed = Evidence(shapes, np.ones_like(known.size), known.sign)
    assert 8 * len(code_mask(draw(pushes), signed)) / pushes.size < best + 0.55 * (naive - best)


def test_useless_evidence_costs_next_to_nothing() -> None:
    bits = draw(np.full(1_000_000, 0.1))
    n = generate_noise(5, bits.size, "gaussian", 1.0)
    known = Evidence(((1000, 1000),), np.minimum(np.abs(n), 1), np.copysign(np.float32(1), n), np.zeros_like(n))
    assert 8 * len(code_mask(bits, known)) / bits.size < 1.005 * entropy(np.full(1, 0.1))


def test_random_bits_are_packed() -> None:
    bits = draw(np.full(sum(sizes_of(SHAPES)), 0.5))
    body = pack_mask(bits, evidence, "auto")
    assert body == Body(pack_bits(bits), PLAIN)


def test_other_evidence_is_noticed() -> None:
    known = evidence()
    bits = draw(0.9 * known.size)
    body = pack_mask(bits, lambda: known, "auto")
    assert body.coder == CODED
    moved = Evidence(SHAPES, known.size, known.sign, noise(SHAPES, 3))
    with pytest.raises(PayloadError, match=r"other first weights|after its last symbol"):
        unpack_mask(body, bits.size, lambda: moved)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_hostile_masks_are_refused(data: st.DataObject) -> None:
    known = evidence(((3, 50), (20, 30)))
    bits = draw(0.3 * known.size)
    real = bytearray(code_mask(bits, known))
    for _ in range(data.draw(st.integers(1, 4))):
        real[data.draw(st.integers(0, len(real) - 1))] ^= data.draw(st.integers(1, 255))
    body = bytes(real[: data.draw(st.integers(0, len(real)))]) + data.draw(st.binary(max_size=9))
    try:
        decoded = decode_mask(body, known)
    except PayloadError:
        return
    assert np.array_equal(decoded, bits)  # as when only a coefficient's last bit has changed


def test_every_symbol_of_every_model_can_be_coded() -> None:
    import constriction

    random = np.random.default_rng(0)
    models = [(_model(level, width), 1 << width) for level in range(LEVELS) for width in (1, 3, 8)]
    models += [(categorical(random.random(n) ** random.integers(1, 60)), int(n)) for n in random.integers(2, 256, 200)]
    for model, size in models:
        symbols = np.arange(size, dtype=np.int32)
        coder = constriction.stream.stack.AnsCoder()
        coder.encode_reverse(symbols, model)
        again = read_words(write_words(coder))
        assert np.array_equal(again.decode(model, size), symbols)


def test_runs_with_their_counts() -> None:
    runs = [np.array([0, 1, 1, 2]), np.zeros(5, np.int64), np.arange(256).repeat(3)]
    counts = [np.bincount(run, minlength=3).tolist() for run in runs]
    for mine, theirs in zip(decode_runs(encode_runs(runs, counts), counts), runs, strict=True):
        assert np.array_equal(mine, theirs)


def test_coding_changes_no_weight() -> None:
    """The same final weights with the coder on and off, and fewer bytes with it on."""
    small = ("rounds=2", "clients=2", "clients_per_round=2", "local.epochs=1", "uplink.dense_bits=32")
    assert len({reference_run((*small, f"uplink.coder={coder}")) for coder in CODERS}) == 1


def test_softsign_is_bounded_and_scale_free() -> None:
    shapes = ((100, 100), (3, 7))
    x = np.random.default_rng(0).standard_normal(10_021).astype(np.float32)
    y = softsign(x, shapes)
    assert (np.abs(y) < 1).all()
    assert np.array_equal(np.sign(x), np.sign(y))
    assert np.array_equal(softsign(x * np.float32(2**-20), shapes), y)
    assert np.median(np.abs(y[:10_000])) == pytest.approx(0.25, abs=0.01)
    assert not softsign(np.zeros(10_021, np.float32), shapes).any()


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("count", [1, 4, 5, 1001])
def test_trits(share: float, count: int) -> None:
    random = np.random.default_rng(1)
    trits = (random.choice([-1, 1], count) * (random.random(count) < share)).astype(np.int8)
    known = partial(evidence, ((1, count),))
    for coder in ("auto", "packed"):
        body = pack_trits(trits, known, coder)  # type: ignore[arg-type]
        assert len(body) <= max_trit_bytes(count)
        assert np.array_equal(unpack_trits(body, count, known), trits)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (Body(b"\x00"), "1 bytes where 6 trits take 2"),
        (Body(b"\xf3\x01"), "not five trits"),
        (Body(b"\x79\x05"), "padding"),
        (Body(b"\x00\x00\x00", CODED), "codes 6 trits in 3 bytes"),
        (Body(b"\x00\x00", 2), "form 2"),
    ],
)
def test_wrong_trits_are_refused(body: Body, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        unpack_trits(body, 6, partial(evidence, ((2, 3),)))


def test_twenty_million_weights_a_second() -> None:
    """Coding and decoding together, on one core."""
    shapes = ((256, 128, 3, 3), (256, 256, 3, 3))
    known = evidence(shapes)
    bits = draw(0.5 - 0.3 * known.size)
    rate = 0.0
    for _ in range(30):
        start = time.thread_time()
        decode_mask(code_mask(bits, known), known)
        rate = max(rate, bits.size / (time.thread_time() - start))
        if rate > 20e6:
            break
    assert rate > 20e6
