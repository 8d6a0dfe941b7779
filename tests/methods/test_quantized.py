"""Quantized updates have the size or the error that was asked for, and the right length."""

import struct
from typing import Any

import numpy as np
import pytest

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.quantization import ONE_STEP, SHORTEST, Quantization, Ranks, TensorSteps, UpdateQuantizer
from fedmrn_app.methods.quantized import UniformLevels
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.wire.adaptive_levels import encode_levels, trends_of
from fedmrn_app.wire.body import CODED, FACTORED, Body
from fedmrn_app.wire.factors import largest_rank, matrix_shape
from tests.helpers import low_rank_update, make_method

LAYOUT = Layout(((32, 16, 3, 3), (64, 32, 3, 3), (10, 64)))


def update_of(seed: int) -> Float32Array:
    """An update that is larger in some rows and columns than in others."""
    random = np.random.default_rng(seed)
    parts = []
    for shape in LAYOUT.shapes:
        rows = np.exp(1.2 * random.normal(size=(shape[0], 1, 1)))
        x = rows * np.exp(1.2 * random.normal(size=(1, 1, shape[1])))
        parts.append((x * random.normal(size=(shape[0], int(np.prod(shape[2:])), shape[1]))).reshape(-1))
    return (np.concatenate(parts) * 1e-3).astype(np.float32)


def context_of(moved: bool) -> SharedContext:
    first = np.random.default_rng(9).normal(size=LAYOUT.count).astype(np.float32)
    return SharedContext(LAYOUT, first + update_of(8) if moved else first.copy(), first)


def sent(x: Float32Array, moved: bool, **options: Any) -> tuple[Body, Float32Array]:
    codec, context = make_method("quantized", **options).codec, context_of(moved)
    body = codec.encode(x, context, 1, 2)
    return body, codec.decode(body, context, 1)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The steps that were tried."""
    steps: list[float] = []
    at = UpdateQuantizer.at

    def counted(self: UpdateQuantizer, step: float, ranks: Any = None) -> Any:
        steps.append(step)
        return at(self, step, ranks)

    monkeypatch.setattr(UpdateQuantizer, "at", counted)
    return steps


def lost(y: Float32Array, x: Float32Array) -> float:
    """The squared error at the best length, as a share."""
    wide = [v.astype(np.float64) for v in (x, y)]
    return 1 - float(np.dot(*wide)) ** 2 / float(np.dot(wide[0], wide[0]) * np.dot(wide[1], wide[1]))


@pytest.mark.parametrize("moved", [False, True], ids=["first round", "later"])
@pytest.mark.parametrize("bits", [0.05, 0.2, 1.0, 4.0])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_bits_are_met_from_the_first_round_on(moved: bool, bits: float, scale: float) -> None:
    x = update_of(1) * np.float32(scale)
    body, y = sent(x, moved, bits=bits, scale="unbiased")
    assert 8 * len(body) / x.size == pytest.approx(bits, rel=0.02)
    assert np.dot(y.astype(np.float64), x) == pytest.approx(np.dot(x.astype(np.float64), x), rel=1e-5)


@pytest.mark.parametrize("error", [0.6, 0.3, 0.1, 0.01])
def test_an_error_is_met(error: float) -> None:
    x = update_of(2)
    body, y = sent(x, True, error=error)
    assert lost(y, x) == pytest.approx(error, rel=0.02)
    assert len(body) < len(sent(x, True, error=error / 2)[0])


def test_more_bits_leave_less_error() -> None:
    errors = [lost(sent(update_of(3), True, bits=bits)[1], update_of(3)) for bits in (0.1, 0.3, 1.0, 3.0)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.01


@pytest.mark.parametrize("bits", [0.01, 0.1, 0.2])
@pytest.mark.parametrize("count", [1, 10, 200, 1000, 4096])
def test_an_update_is_sent_however_few_weights_it_has(count: int, bits: float) -> None:
    x = np.random.default_rng(1).normal(size=count).astype(np.float32)
    zeros = np.zeros_like(x)
    known = SharedContext(Layout(((count, 1),)), zeros, zeros)
    codec = make_method("quantized", bits=bits, scale="unbiased").codec
    body = codec.encode(x, known, 1, 0)
    assert len(body) <= max(64, 1.2 * bits * count / 8)
    assert codec.decode(body, known, 1) @ x == pytest.approx(x @ x, rel=1e-3)


def test_an_update_of_zeros_takes_a_few_bytes_and_one_that_is_not_finite_is_refused() -> None:
    body, y = sent(np.zeros(LAYOUT.count, np.float32), True)
    assert len(body) < 20
    assert not y.any()
    x = update_of(4)
    x[7] = np.nan
    with pytest.raises(PayloadError, match="scale"):
        sent(x, True)


def test_another_start_is_noticed() -> None:
    codec, x = make_method("quantized").codec, update_of(5)
    body = codec.encode(x, context_of(True), 1, 2)
    with pytest.raises(PayloadError, match="initial weights"):
        codec.decode(body, context_of(False), 1)


@pytest.mark.filterwarnings("error")
def test_a_scale_beyond_float32_is_refused_without_a_warning() -> None:
    codec, context = make_method("quantized").codec, context_of(True)
    body = codec.encode(update_of(7), context, 1, 2)
    with pytest.raises(PayloadError, match="scale"):
        codec.decode(Body(struct.pack("<f", 3e38) + bytes(body.data[4:]), body.form), context, 1)


def test_a_dominant_element_does_not_hinder_the_search() -> None:
    x = update_of(6)
    x[100] = 1e3
    for bits in (0.2, 2.0):
        body, y = sent(x, True, bits=bits)
        assert np.isfinite(y).all()
        assert 8 * len(body) / x.size < 1.02 * bits
        assert y[100] == pytest.approx(1e3, rel=0.01)


@pytest.mark.parametrize("low_rank", [False, True])
def test_no_size_makes_the_step_so_fine_that_large_elements_are_cut(low_rank: bool) -> None:
    x = (update_of(3).astype(np.float64) ** 7).astype(np.float32)  # few elements hold nearly all of the norm
    x /= np.abs(x).max()
    sizes = []
    for bits in (2.0, 6.0, 14.0):
        body, y = sent(x, False, bits=bits, low_rank=low_rank)
        assert lost(y, x) < 1e-5
        sizes.append(len(body.data))
    assert sizes[1] == sizes[2]  # a finer step would not tell the largest elements apart


@pytest.mark.parametrize("moved", [False, True], ids=["first round", "later"])
@pytest.mark.parametrize("tensor_steps", [0.5, 1.0])
def test_steps_follow_the_tensors(tensor_steps: float, moved: bool) -> None:
    x = update_of(5)
    first, second, last = LAYOUT.split(x)
    first *= 30
    last *= 0.01
    body, y = sent(x, moved, bits=0.5, tensor_steps=tensor_steps, scale="unbiased")
    assert 8 * len(body) / x.size == pytest.approx(0.5, rel=0.02)
    assert np.dot(y.astype(np.float64), x) == pytest.approx(np.dot(x.astype(np.float64), x), rel=1e-5)
    parts = [lost(sent(x, moved, bits=0.5, tensor_steps=g)[1][LAYOUT.slices[1]], second) for g in (0.0, tensor_steps)]
    assert parts[1] < 0.7 * parts[0]
    whole = [lost(sent(x, moved, bits=0.5, tensor_steps=g)[1], x) for g in (0.0, tensor_steps)]
    assert whole[0] < whole[1]


def test_steps_in_proportion_leave_the_same_error_in_each_tensor() -> None:
    x = np.random.default_rng(3).normal(size=LAYOUT.count).astype(np.float32)
    for number, part in enumerate(LAYOUT.split(x)):
        part *= np.float32(10.0**-number)
    x[LAYOUT.slices[0]] *= 7
    y = sent(x, False, bits=1.0, tensor_steps=1.0)[1]
    errors = [lost(b, a) for a, b in zip(LAYOUT.split(x), LAYOUT.split(y), strict=True)]
    assert max(errors) < 1.5 * min(errors)


def test_steps_of_tensors_that_no_encoder_writes_are_refused() -> None:
    codec, context = make_method("quantized", tensor_steps=1.0, low_rank=False).codec, context_of(True)
    body = codec.encode(update_of(7), context, 1, 2)
    for octet in (b"\x01", b"\x80"):
        with pytest.raises(PayloadError, match="larger than the largest"):
            codec.decode(Body(bytes(body.data[:7]) + octet + bytes(body.data[8:]), body.form), context, 1)
    with pytest.raises(PayloadError, match="less than its head of 10"):
        codec.decode(Body(bytes(body.data[:9]), body.form), context, 1)


@pytest.mark.parametrize("zeros", [1, 3])
def test_tensors_without_updates_are_sent_as_zero(zeros: int) -> None:
    x = update_of(4)
    for part in LAYOUT.split(x)[:zeros]:
        part[:] = 0
    y = sent(x, True, tensor_steps=1.0)[1]
    assert not any(part.any() for part in LAYOUT.split(y)[:zeros])
    assert y.any() == (zeros < 3)


@pytest.mark.parametrize("error", [0.95, 0.9, 0.8])
def test_an_error_is_met_where_all_elements_are_about_as_large(error: float) -> None:
    """As after a few steps of Adam: between two steps of the quantizer that differ little, all levels vanish."""
    random = np.random.default_rng(6)
    x = (random.choice([-1.0, 1.0], LAYOUT.count) * (1 + 0.2 * random.normal(size=LAYOUT.count))).astype(np.float32)
    assert lost(sent(x, False, error=error)[1], x) == pytest.approx(error, rel=0.03)


@pytest.mark.parametrize("tensor_steps", [0.0, 0.5])
@pytest.mark.parametrize("rank", [1, 3])
def test_factors_take_less_for_an_update_of_few_directions(rank: int, tensor_steps: float) -> None:
    x = low_rank_update(LAYOUT, rank)
    options = {"error": 0.1, "tensor_steps": tensor_steps}
    body, y = sent(x, True, **options)
    elements, _z = sent(x, True, low_rank=False, **options)
    assert (body.form, elements.form) == (FACTORED, CODED)
    assert lost(y, x) == pytest.approx(0.1, rel=0.02)
    assert len(body) < 0.2 * len(elements)


@pytest.mark.parametrize("bits", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("rank", [2, 12])
def test_bits_are_met_with_factors(rank: int, bits: float) -> None:
    x = low_rank_update(LAYOUT, rank, 0.3)
    body, y = sent(x, False, bits=bits)
    assert 8 * len(body) / x.size == pytest.approx(bits, rel=0.02)
    assert lost(y, x) < 1.01 * lost(sent(x, False, bits=bits, low_rank=False)[1], x)


@pytest.mark.parametrize("rank", [0, 2, 12])
def test_sizes_are_expected_before_they_are_coded(rank: int) -> None:
    x, trends = low_rank_update(LAYOUT, rank, 0.3) if rank else update_of(1), np.zeros(LAYOUT.count, np.int8)
    steps = TensorSteps.of(ONE_STEP, LAYOUT)
    quantizer = UpdateQuantizer(x, LAYOUT, trends, steps=steps, low_rank=True, scale="auto")
    rms = float(np.sqrt(np.mean(np.square(x))))
    ratios = [quantizer.at(step * rms).size / quantizer.expected_size(step * rms) for step in (2.0, 1.0, 0.5, 0.25)]
    assert 0.6 < min(ratios) <= max(ratios) < 1.3
    assert max(ratios) < 1.4 * min(ratios)


@pytest.mark.parametrize(("bits", "most"), [(0.1, 30), (0.2, 25), (0.4, 25), (1.0, 25)])
def test_few_attempts_find_a_size(bits: float, most: int, attempts: list[float]) -> None:
    layout = Layout(((64, 64, 3, 3), (128, 400)))
    codec, trends = UniformLevels(bits, None, "auto"), np.zeros(layout.count, np.int8)
    for rank in range(2, 22, 2):
        codec.search(low_rank_update(layout, rank, 1.0), layout, trends)
    assert len(attempts) <= most


def test_an_update_that_is_sent_exactly_in_fewer_bits_takes_two_attempts(attempts: list[float]) -> None:
    x = np.full(LAYOUT.count, 0.3, np.float32)
    body, y = sent(x, False, bits=0.2, low_rank=False)
    assert len(attempts) <= 2
    assert len(body.data) < 0.02 * x.size / 8
    assert lost(y, x) < 1e-12


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize(("scale", "unbiased"), [("unbiased", True), ("least_mse", False)])
def test_the_length_is_right_along_the_update_or_that_of_the_least_error(scale: str, rank: int, unbiased: bool) -> None:
    x = low_rank_update(LAYOUT, 2)
    if rank == 0:
        x[np.random.default_rng(2).random(x.size) < 0.98] = 0
    body, y = sent(x, False, bits=0.1, scale=scale)
    assert body.form == (FACTORED if rank else CODED)
    inner, square = np.dot(y.astype(np.float64), x), np.square((x if unbiased else y).astype(np.float64)).sum()
    assert inner == pytest.approx(square, rel=1e-4)


@pytest.mark.parametrize(("half_length", "part"), [(1.0, 0.5), (4.0, 0.5), (16.0, 0.8), (1e9, 1.0)])
def test_an_update_is_shorter_the_more_noise_it_has(half_length: float, part: float) -> None:
    x = low_rank_update(LAYOUT, 30, 0.5)
    body, y = sent(x, False, error=0.8, half_length=half_length)
    assert body.form == FACTORED
    assert lost(y, x) == pytest.approx(0.8, rel=0.02)
    noise = 1 / (1 - lost(y, x)) - 1
    exact = max(SHORTEST, 1 / (1 + noise / half_length))
    assert part == pytest.approx(exact, rel=0.03)
    assert np.dot(y.astype(np.float64), x) == pytest.approx(exact * np.dot(x.astype(np.float64), x), rel=1e-4)


def test_short_bodies_have_factors_only_where_their_error_is_less() -> None:
    layout, random = Layout(((6, 1, 3, 3), (10, 54), (7, 10), (54, 12))), np.random.default_rng(1)
    zeros = np.zeros(layout.count, np.float32)
    known = SharedContext(layout, zeros, zeros)
    for _ in range(20):
        x = (random.normal(size=layout.count) * np.exp(random.normal(size=layout.count))).astype(np.float32)
        errors = []
        for low_rank in (True, False):
            codec = make_method("quantized", low_rank=low_rank).codec
            errors.append(lost(codec.decode(codec.encode(x, known, 1, 2), known, 1), x))
        assert errors[0] <= 1.03 * errors[1]  # sizes are met within 1.5%


@pytest.mark.parametrize("coder", ["auto", "packed"])
@pytest.mark.parametrize("shapes", [((3, 4), (2, 2)), ((2, 3),), ((4, 2), (1, 8), (5,)), ((6, 2, 3, 3), (7, 9))])
def test_factors_of_the_smallest_matrices_are_read(shapes: tuple[tuple[int, ...], ...], coder: str) -> None:
    layout, random = Layout(shapes), np.random.default_rng(3)
    zeros = np.zeros(layout.count, np.float32)
    codec, known = make_method("quantized", coder=coder).codec, SharedContext(layout, zeros, zeros)
    assert isinstance(codec, UniformLevels)
    for step in (1e-3, 0.1, 1.0):
        x = random.normal(size=layout.count).astype(np.float32)
        steps = TensorSteps.of(ONE_STEP, layout)
        quantizer = UpdateQuantizer(x, layout, trends_of(zeros), steps=steps, low_rank=True, scale="unbiased")
        ranks = tuple(largest_rank(matrix_shape(shape)) for shape in shapes)
        found = quantizer.at(step, ranks)
        body = codec.write(found)
        assert body.form == FACTORED
        assert len(body) <= codec.limits(layout).max_bytes
        y = codec.decode(body, known, 1)
        assert np.dot(y.astype(np.float64), x) == pytest.approx(np.dot(x.astype(np.float64), x), rel=1e-4)
        assert lost(y, x) == pytest.approx(found.error, abs=1e-4)


@pytest.mark.parametrize("kind", ["normal", "sparse", "signs"])
def test_an_update_without_directions_takes_no_more_than_its_elements(kind: str) -> None:
    random = np.random.default_rng(2)
    wide = random.normal(size=LAYOUT.count) * (random.random(LAYOUT.count) < 0.02 if kind == "sparse" else 1)
    x = (np.sign(wide) if kind == "signs" else wide).astype(np.float32)
    for error in (0.5, 0.1, 0.02):
        sizes = [len(sent(x, False, error=error, low_rank=low_rank)[0]) for low_rank in (True, False)]
        assert sizes[0] <= 1.02 * sizes[1]


def test_a_body_says_itself_whether_it_has_factors() -> None:
    codec, context = make_method("quantized").codec, context_of(True)
    x = update_of(4)
    body = make_method("quantized", low_rank=False, scale="unbiased").codec.encode(x, context, 1, 2)
    assert np.dot(codec.decode(body, context, 1), x) == pytest.approx(np.dot(x, x), rel=1e-3)
    factored = codec.encode(low_rank_update(LAYOUT, 2), context, 1, 2)
    with pytest.raises(PayloadError, match="form 3"):
        make_method("quantized", low_rank=False).codec.decode(factored, context, 1)
    packed = make_method("quantized", coder="packed").codec.encode(low_rank_update(LAYOUT, 2), context, 1, 2)
    assert packed.form == FACTORED
    assert len(packed) > len(factored)
    assert np.array_equal(codec.decode(packed, context, 1), codec.decode(factored, context, 1))


def test_factors_that_no_encoder_writes_are_refused() -> None:
    codec, context = make_method("quantized").codec, context_of(True)
    data = bytes(codec.encode(low_rank_update(LAYOUT, 2), context, 1, 2).data)
    no_ranks, tensors = bytes(3), len(LAYOUT.shapes)
    wrong = {
        "more factors": data[:4] + b"\xff" + data[5:],
        "or none at all": data[:4] + no_ranks + data[4 + tensors :],
        "left vectors": data[:12] + b"\xff\xff\xff\xff" + data[16:],
        "its head": data[:14],
        "form 2": data[:7] + b"\x02" + data[8:],
        "scale": struct.pack("<f", float("nan")) + data[4:],
        "checksum": data[:-20] + bytes([data[-20] ^ 1]) + data[-19:],
    }
    for reason, damaged in wrong.items():
        with pytest.raises(PayloadError, match=reason):
            codec.decode(Body(damaged, FACTORED), context, 1)


@pytest.mark.filterwarnings("error")
def test_products_beyond_float32_are_refused_without_a_warning() -> None:
    layout = Layout(((8, 30),))
    left, right = np.zeros((3, 8), np.int16), np.full((3, 30), 8000, np.int16)
    left[:, 0] = 1
    coded = [
        encode_levels(levels.reshape(-1), Layout((levels.shape,)), np.zeros(levels.size, np.int8))
        for levels in (left, right)
    ]
    zeros = np.zeros(layout.count, np.float32)
    codec, known = make_method("quantized").codec, SharedContext(layout, zeros, zeros)
    for scale in (1e34, 2e34):
        head = struct.pack("<fBBBbbbI", scale, 3, 1, 1, 0, 0, 0, len(coded[0]))
        body = Body(head + coded[0] + bytes(3) + coded[1], FACTORED)
        if scale == 1e34:
            assert codec.decode(body, known, 1).reshape(8, 30)[0] == pytest.approx(24000 * 1e34)
            continue
        with pytest.raises(PayloadError, match="scale"):
            codec.decode(body, known, 1)


def test_a_wide_matrix_of_low_rank_is_never_tried_element_by_element(monkeypatch: pytest.MonkeyPatch) -> None:
    """After few local steps an update has few directions, and a size may have room for finer steps than it needs."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((600, 8), np.float32) @ rng.standard_normal((8, 600), np.float32)).reshape(-1)
    layout = Layout(((600, 600),))
    tried: list[tuple[Ranks, int]] = []
    plain = UpdateQuantizer.at

    def at(quantizer: UpdateQuantizer, step: float, ranks: Ranks | None = None) -> Quantization:
        found = plain(quantizer, step, ranks)
        tried.append((found.ranks, len(found.elements.coded.levels)))
        return found

    monkeypatch.setattr(UpdateQuantizer, "at", at)
    for bits, most in ((0.05, 0.3), (0.2, 0.01), (0.6, 1e-6), (2.0, 1e-6)):
        tried.clear()
        found = UniformLevels(bits, None, "auto").search(x, layout, np.zeros(x.size, np.int8))
        assert set(tried) == {((8,), 8 * 600)}, bits
        assert len(tried) <= 6, bits
        assert found.size <= 1.02 * bits * x.size / 8
        assert found.error < most, bits


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("noise", "bits"), [(3e-3, 0.5), (3e-3, 2.5), (1e-2, 3.0), (1e-3, 1.4)])
def test_a_size_with_room_for_more_than_the_directions_of_an_update_costs_neither_time_nor_error(
    noise: float, bits: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finer steps would clip the factors, or code all elements for what the noise adds."""
    side, rank, rng = 1024, 16, np.random.default_rng(0)
    left = rng.standard_normal((side, rank)) * np.geomspace(1, 0.05, rank)
    x = left @ rng.standard_normal((rank, side)) + noise * rng.standard_normal((side, side))
    sizes: list[int] = []
    plain = UpdateQuantizer.at

    def at(quantizer: UpdateQuantizer, step: float, ranks: Ranks | None = None) -> Quantization:
        found = plain(quantizer, step, ranks)
        sizes.append(found.size)
        return found

    monkeypatch.setattr(UpdateQuantizer, "at", at)
    codec, known = UniformLevels(bits, None, "auto"), np.zeros(side * side, np.int8)
    found = codec.search(x.astype(np.float32).reshape(-1), Layout(((side, side),)), known)
    assert found.error < 1e-4
    assert found.size <= 1.02 * bits * x.size / 8
    assert max(sizes) <= 4 * bits * x.size / 8
    assert len(sizes) <= 3
