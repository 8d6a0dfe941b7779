"""The compressors follow their papers: unbiased where the papers say so, and with the published errors."""

import itertools
import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmrn_app.errors import ConfigError, PayloadError
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.methods.eden import quantize_stretch
from fedmrn_app.methods.fedsparsify import FedSparsify, PrunedTraining
from fedmrn_app.methods.hadamard import rotate, rotate_back
from fedmrn_app.methods.method import RunOptions
from fedmrn_app.methods.quantizers import lloyd_max, uniform
from fedmrn_app.methods.topk import keep_largest, kept_count
from fedmrn_app.noise import Noise
from fedmrn_app.wire.body import CODED, PLAIN, Body
from fedmrn_app.wire.primitives import pack_bits
from tests.helpers import (
    GAUSSIAN,
    SHAPES,
    bits_a_weight,
    estimate,
    local_round,
    make_method,
    moved,
    new_model,
    squared_error,
    updates,
)

BITS, LEVELS = [1, 2, 3, 4], [2, 3, 4]


def estimates(name: str, x: Float32Array, seeds: int, **options: Any) -> NDArray[np.float32]:
    codec = make_method(name, **options).codec
    return np.array([estimate(codec, x, seed) for seed in range(seeds)])


def eden_error(bits: int = 1, levels: str = "lloyd_max") -> float:
    """E(z - Q / (1 - D))^2 = 1 / (1 - D) - 1 of a normal variable z, with E(z Q) = E(Q^2) = 1 - D for its centroids."""
    quantizer = {"lloyd_max": lloyd_max, "uniform": uniform}[levels](bits)
    power = (quantizer.cells * np.square(quantizer.centroids)).sum() / quantizer.cells.sum()
    return float(1 / power - 1)


@pytest.mark.slow
def test_stochastic_signs_and_trits_are_unbiased() -> None:
    x = np.random.default_rng(1).uniform(-0.9, 0.9, 500).astype(np.float32)
    x[0] = 1  # the scale; no element exceeds 2.5 standard deviations
    for name, variance in (("signsgd", 1 - x**2), ("terngrad", np.abs(x) - x**2)):
        mean = estimates(name, x, 4000).mean(0, np.float64)
        assert (np.abs(mean - x) <= 4 * np.sqrt(variance / 4000) + 1e-6).all(), name


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize(
    ("name", "options", "error", "within"),
    [
        ("drive", {}, 1 - 2 / math.pi, 0.005),
        ("drive", {"scale": "unbiased"}, math.pi / 2 - 1, 0.01),
        ("eden", {}, 0.5708, 0.011),
        ("eden", {"bits": 2}, 0.1331, 0.0026),
        ("eden", {"bits": 3}, 0.03578, 0.0007),
        ("eden", {"bits": 4}, 0.00959, 0.0002),
        ("eden", {"bits": 2, "levels": "uniform"}, 0.09763, 0.002),
        ("eden", {"bits": 3, "levels": "uniform"}, 0.02275, 0.0005),
        ("eden", {"bits": 4, "levels": "uniform"}, 0.00559, 0.0001),
    ],
    ids=str,
)
def test_rotated_methods_have_the_published_errors(
    name: str, options: dict[str, Any], error: float, within: float
) -> None:
    """For one vector; and the mean of 200 unbiased estimates has a 200th of the error."""
    assert squared_error(estimate(make_method(name, **options).codec, GAUSSIAN, 1), GAUSSIAN) == pytest.approx(
        error, abs=within
    )
    if (name, options) == ("drive", {}):
        return
    x = GAUSSIAN[:20_000]
    assert squared_error(estimates(name, x, 200, **options).mean(0), x) * 200 == pytest.approx(error, rel=0.05)
    assert name != "eden" or eden_error(**options) == pytest.approx(error, rel=1e-3)


def test_signs_are_scaled_by_tensor() -> None:
    """Stochastic signs by max |x|; with error feedback the signs are those of x, and the scale is the mean |x|."""
    layout, known = Layout(SHAPES), moved(SHAPES)
    x = updates("random", layout.count)
    drawn, taken = (make_method("signsgd", error_feedback=feedback).codec for feedback in (False, True))
    drawn_update, taken_update = (codec.decode(codec.encode(x, known, 0, 0), known, 0) for codec in (drawn, taken))
    for tensor, one, other in zip(*map(layout.split, (x, drawn_update, taken_update)), strict=True):
        assert (np.abs(one) == np.abs(tensor).max()).all()
        np.testing.assert_allclose(other, np.where(tensor >= 0, 1, -1) * np.abs(tensor).mean(), rtol=1e-5)


def test_terngrad_clips_at_two_and_a_half_sigma() -> None:
    x = GAUSSIAN[:100_000]
    estimated = estimate(make_method("terngrad").codec, x, 0)
    assert np.unique(np.abs(estimated)).tolist() == pytest.approx([0, 2.5 * x.std()], rel=1e-5)
    wider = estimate(make_method("terngrad", clip=100.0).codec, x, 0)
    assert squared_error(wider, x) > squared_error(estimated, x)


def test_topk_leaves_out_the_energy_of_the_tail() -> None:
    x = GAUSSIAN[:100_000]
    squares = np.sort(np.square(x, dtype=np.float64))
    tail = squares[: -round(0.03 * x.size)].sum() / squares.sum()
    assert squared_error(estimate(make_method("topk").codec, x, 0), x) == pytest.approx(tail, rel=1e-6)
    assert np.count_nonzero(keep_largest(x, 123)) == 123
    assert [kept_count(size, 0.03) for size in (1, 10, 100, 1000)] == [1, 1, 3, 30]


def test_fedsparsify_prunes_along_its_schedule_and_averages_models() -> None:
    method = make_method("fedsparsify")
    assert isinstance(method.training, PrunedTraining)
    curve = [method.training.sparsity(step / 10, 0.03) for step in range(11)]
    assert curve[0] == 0
    assert curve[-1] == pytest.approx(0.97)
    assert all(a < b for a, b in itertools.pairwise(curve))
    model, local = new_model(), local_round(4)
    zeros: list[float] = []
    model.module.register_forward_pre_hook(lambda *_: zeros.append(float((model.weights == 0).float().mean())))
    trained = method.training.train(model, local)
    assert zeros == sorted(zeros)
    assert 0.5 < zeros[len(zeros) // 2] < zeros[-1] <= 0.9701
    sparse = method.codec.decode(method.codec.encode(trained.x, local.context, 0, 0), local.context, 0)
    assert np.array_equal(sparse, trained.x)
    assert np.count_nonzero(sparse) == round(0.03 * sparse.size)
    assert not method.server.combine(np.ones(3, np.float32), np.zeros(3, np.float32), 4).any()


def note_weights(model: FlatModel, seen: set[int], *_: object) -> None:
    seen.add(int((model.weights != 0).sum()))


def test_fedsparsify_of_its_authors_prunes_by_round_and_trains_what_the_global_model_holds() -> None:
    """dstripelis/FedSparsify: s_f (1 - (1 - r / R)^3), after training in which zeros of the global model stay zero."""
    method = FedSparsify(ratio=0.03, schedule="rounds").build(RunOptions(Noise(), rounds=10))
    sizes = []
    for number in (1, 5, 10):
        model, local = new_model(), local_round(4)
        local = replace(local, server_round=number)
        model.weights[::7] = 0
        held = (model.weights != 0).cpu().numpy()
        seen: set[int] = set()
        model.module.register_forward_pre_hook(partial(note_weights, model, seen))
        trained = method.training.train(model, local)
        assert seen == {int(held.sum())}
        assert not trained.x[~held].any()
        sizes.append(np.count_nonzero(trained.x))
        assert np.array_equal(
            method.codec.decode(method.codec.encode(trained.x, local.context, 0, 0), local.context, 0), trained.x
        )
    size = model.weights.numel()
    shares = [1 - 0.97 * (1 - (1 - number / 10) ** 3) for number in (1, 5, 10)]
    assert sizes == [round(share * size) for share in shares]
    for run in (RunOptions(Noise()), RunOptions(Noise(), rounds=10, budget=0.3)):
        with pytest.raises(ConfigError) as refused:
            FedSparsify(schedule="rounds").build(run)
        assert refused.value.key == "strategy.schedule"


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.slow
@pytest.mark.parametrize("size", [1500, 2048])
def test_eden_is_unbiased_in_every_direction(bits: int, size: int) -> None:
    """Along both parts of the update, of which one is larger, along a spike, and along random directions."""
    x = GAUSSIAN[:size].copy()
    x[: size // 3] *= 5
    x[size // 2] = 20
    seeds, place = 1000, np.arange(size)
    off = estimates("eden", x, seeds, bits=bits).astype(np.float64) - x
    random = np.random.default_rng(1).standard_normal((5, size))
    along = off @ np.stack([x * (place < size // 3), x * (place >= size // 3), place == size // 2, *random]).T
    assert (np.abs(along.mean(0)) < 4 * along.std(0) / np.sqrt(seeds)).all()
    assert np.square(off).sum() / seeds == pytest.approx(eden_error(bits) * np.square(x).sum(), rel=0.05)


@pytest.mark.parametrize(("bits", "gain"), [(2, 0.0586), (3, 0.0505), (4, 0.0402)])
def test_uniform_levels_are_shorter_at_the_same_error(bits: int, gain: float) -> None:
    """Bits at the error of Lloyd-Max levels, on the line through both kinds: 6 dB are a bit."""
    plain, finer = (make_method("eden", bits=bits, levels=levels).codec for levels in ("lloyd_max", "uniform"))
    sizes = [bits_a_weight(codec, "random") for codec in (plain, finer)]
    more = math.log2(1 + 1 / eden_error(bits, "uniform")) - math.log2(1 + 1 / eden_error(bits))
    assert 1 - (sizes[1] - more / 2) / sizes[0] == pytest.approx(gain, abs=0.004)


def test_uniform_levels_of_one_bit_are_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match=r"set strategy\.bits to 2, 3 or 4") as refused:
        make_method("eden", levels="uniform")
    assert refused.value.key == "strategy.levels"


@pytest.mark.parametrize("bits", BITS)
def test_eden_has_the_scales_of_the_paper(bits: int) -> None:
    """norm2(y)^2 / <y, Q(y)>, written out with a search for the nearest centroid, at any size of y."""
    y = (GAUSSIAN[:1000] * np.float32(0.01)).astype(np.float32)
    exact, quantizer = y.astype(np.float64), lloyd_max(bits)
    unit = exact / np.sqrt(np.mean(np.square(exact)))
    nearest = np.abs(unit[:, None] - quantizer.centroids).argmin(1)
    levels, scale = quantize_stretch(y, quantizer)
    assert np.array_equal(levels, nearest)
    assert scale == pytest.approx(np.sum(exact**2) / np.sum(exact * quantizer.centroids[nearest]), rel=1e-6)
    for size in (1e-25, 1e25):  # whose squares overflow in float32
        x = GAUSSIAN[:3000] * np.float32(size)
        estimated = estimate(make_method("eden", bits=bits).codec, x, 1).astype(np.float64) / size
        assert squared_error(estimated, GAUSSIAN[:3000]) == pytest.approx(eden_error(bits), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "length"), [("least_mse", 2 / math.pi), ("unbiased", 1)])
def test_drive_has_one_length_on_stretches_of_unequal_size(scale: str, length: float) -> None:
    """The mean estimate of each part is `length` times the part, though one part has most of the norm."""
    x = GAUSSIAN[:90_000].copy()  # a whole block, and a last one of two stretches, 8,080 and 16,384 coordinates
    x[-6_000:] *= 10
    mean = estimates("drive", x, 100, scale=scale).mean(0, np.float64)
    for part in (slice(0, 65_536), slice(65_536, 84_000), slice(84_000, None)):
        along = mean[part] @ x[part] / np.square(x[part], dtype=np.float64).sum()
        assert along == pytest.approx(length, rel=0.02)


def test_eden_of_a_random_subset_is_unbiased_with_the_error_of_the_formula() -> None:
    x, share = GAUSSIAN[:3000], 0.25
    found = estimates("eden", x, 400, share=share)
    off = found.astype(np.float64) - x
    assert np.square(off).sum() / 400 == pytest.approx(((1 + eden_error(1)) / share - 1) * np.square(x).sum(), rel=0.05)
    along = off @ x
    assert abs(along.mean()) < 4 * along.std() / np.sqrt(400)
    assert abs(np.mean(found != 0) - share) < 0.01
    codec = make_method("eden", share=share).codec
    assert bits_a_weight(codec, "random") == pytest.approx(share, rel=0.05)
    known = moved(((3000, 1),))
    with pytest.raises(PayloadError):  # another seed means another subset
        codec.decode(codec.encode(x, known, 1, 0), known, 2)


def test_signs_with_one_scale_per_block_are_read() -> None:
    """Version 0.1 wrote them so, four bytes shorter where the last block has two stretches."""
    x, known = GAUSSIAN[:3000], moved(((3000, 1),))
    signs = rotate(x, 1) >= 0
    decoded = make_method("drive").codec.decode(Body(np.float32(0.5).tobytes() + pack_bits(signs)), known, 1)
    assert np.array_equal(decoded, rotate_back(np.where(signs, 0.5, -0.5).astype(np.float32), 1))


def test_eden_codes_levels_but_not_signs() -> None:
    assert bits_a_weight(make_method("eden", "packed", bits=3).codec, "random") == pytest.approx(3, abs=0.001)
    known = moved(((1000, 1),))
    for bits in (1, *LEVELS):
        codec = make_method("eden", bits=bits).codec
        body = codec.encode(GAUSSIAN[:1000], known, 1, 0)
        assert body.form == (PLAIN if bits == 1 else CODED)
        refused = [make_method("eden", bits=other).codec for other in range(1, 5) if other != bits]
        packed = make_method("eden", "packed", bits=bits).codec.encode(GAUSSIAN[:1000], known, 1, 0)
        for other in refused:
            with pytest.raises(PayloadError):
                other.decode(packed, known, 1)
    with pytest.raises(PayloadError):
        make_method("eden").codec.decode(Body(packed.data, CODED), known, 1)


@pytest.mark.parametrize(("name", "options"), [("drive", {}), ("eden", {"bits": 4})], ids=str)
@pytest.mark.parametrize("scale", [3e38, np.nan, -1])
def test_scales_of_no_finite_update_are_refused(name: str, options: dict[str, Any], scale: float) -> None:
    codec, known = make_method(name, **options).codec, moved(((1000, 1),))
    body = codec.encode(GAUSSIAN[:1000], known, 1, 0)
    count = 2 if options else 1
    changed = np.full(count, scale, "<f4").tobytes() + bytes(body.data[4 * count :])
    with pytest.raises(PayloadError) as refusal:
        codec.decode(Body(changed, body.form), known, 1)
    assert scale != 3e38 or refusal.value.code == "not-finite"
