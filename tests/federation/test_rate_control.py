"""The noise's scale: known to both sides, and controlled to a budget of bits."""

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import nn

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.errors import PayloadError
from fedmrn_app.federation.loop import run_rounds
from fedmrn_app.federation.protocol import GlobalState
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.learning.evaluate import evaluate
from fedmrn_app.methods.fedmrn import FedMRN, FedMRNS
from fedmrn_app.methods.method import Method, RunOptions
from fedmrn_app.methods.rate_control import (
    CLEAR_RATIO,
    FIRST_BITS,
    GROWTH,
    LEAST_BYTES,
    MAX_RATIO,
    MAX_SIGNED_RATIO,
    SCALE_LIMIT,
    SHRINKAGE,
    RateControl,
    least_mask_bits,
    limited_scale,
    most_mask_bits,
    rate_curve,
)
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import DISTRIBUTIONS, MAX_ALPHA, MIN_ALPHA, Distribution, Noise
from tests.helpers import final_state

LAYOUT = Layout(((200, 150), (40, 40), (12, 500)))
ZEROS = np.zeros(LAYOUT.count, np.float32)
KNOWN = SharedContext(LAYOUT, ZEROS, ZEROS)
SIZES = np.array([0.004, 0.03, 0.0007])  # mean |update| of each tensor


def laplace(seed: int, sizes: NDArray[np.float64]) -> Float32Array:
    random = np.random.default_rng(seed)
    return np.concatenate(
        [random.laplace(0, size, count) for size, count in zip(sizes, LAYOUT.sizes, strict=True)]
    ).astype(np.float32)


def controlled(recipe: type[FedMRN], bits: float = 0.4, noise: Noise | None = None) -> tuple[Method, RateControl]:
    method = recipe().build(RunOptions(noise or Noise(), bits=bits))
    assert method.rate_control is not None
    return method, method.rate_control


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("recipe", [FedMRN, FedMRNS])
def test_both_sides_take_the_scale_of_the_round(recipe: type[FedMRN], distribution: Distribution) -> None:
    x, set_by_server = laplace(1, SIZES), KNOWN.with_scale(0.07)
    codec = recipe().build(RunOptions(Noise(distribution, 0.5))).codec
    fixed = recipe().build(RunOptions(Noise(distribution, 0.07))).codec
    body = codec.encode(x, set_by_server, 5, 0)
    assert body == fixed.encode(x, KNOWN, 5, 0)
    assert np.array_equal(codec.decode(body, set_by_server, 5), fixed.decode(body, KNOWN, 5))
    assert np.array_equal(set_by_server.noise(Noise(distribution, 0.5), 9), Noise(distribution, 0.07)(9, LAYOUT.count))


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 1e-38, 1e38])
def test_wrong_scales_are_refused(scale: float) -> None:
    with pytest.raises(PayloadError) as refusal:
        KNOWN.with_scale(scale)
    assert refusal.value.code == "noise-scale"


@pytest.mark.parametrize(
    ("recipe", "bits"), [(recipe, bits) for recipe in (FedMRN, FedMRNS) for bits in (0.2, 0.3, 0.45)] + [(FedMRNS, 0.6)]
)
def test_budget_is_met_from_the_third_round_on(recipe: type[FedMRN], bits: float) -> None:
    """While updates shrink in each round, but for those of one tensor."""
    method, control = controlled(recipe)
    state, spent = control.first(bits), []
    for number in range(1, 13):
        sizes = SIZES * np.array([0.95**number, 1, 0.95**number])
        known = KNOWN.with_scale(float(state[0]))
        bodies = []
        for client in range(4):
            seed = 100 * number + client
            body = method.codec.encode(laplace(seed, sizes), known, seed, 0)
            method.codec.decode(body, known, seed)
            bodies.append(8 * len(body) / LAYOUT.count)
        spent.append(float(np.mean(bodies)))
        state = control.next(state, spent[-1], bits)
    away = np.abs(np.array(spent) / bits - 1)
    assert away[2:].max() < 0.12, spent
    assert away[4:].max() < 0.05, spent


def test_scale_changes_gradually_after_the_first_round_and_stays_in_range() -> None:
    _, control = controlled(FedMRN)
    for spent, left, factor in ((0.9, 0.1, GROWTH), (0.1, 0.9, 1 / SHRINKAGE)):
        first = control.next(control.first(left), spent, left)
        state = control.next(first, spent, left)
        assert state[0] == pytest.approx(first[0] * factor, rel=1e-6)
        for _ in range(200):
            state = control.next(state, spent, left)
        assert MIN_ALPHA <= float(state[0]) <= MAX_ALPHA


def test_first_scale_is_for_updates_whose_masks_have_the_expected_bits_at_alpha() -> None:
    ratios, bits = rate_curve()
    size = 0.01 * float(np.interp(FIRST_BITS, bits, ratios))
    for left in (0.1, 0.2, 0.5):
        scale = RateControl(0.3, 0.01).first(left)[0]
        assert np.interp(size / scale, ratios, bits) == pytest.approx(left, rel=1e-4)
        assert RateControl(0.3, 0.01, signed=True).first(left)[0] == np.float32(0.01)


def test_second_scale_is_the_first_replies_own() -> None:
    """Masks of unit uniform noise have r = 0.3, and 0.3 / 0.03 is ten."""
    ratios, bits = rate_curve()
    spent, left = (float(np.interp(ratio, ratios, bits)) for ratio in (0.3, 0.03))
    control = RateControl(0.3, 0.01)
    first = control.first(left)
    assert control.next(first, spent, left)[0] == pytest.approx(10 * first[0], rel=1e-5)
    longest = control.next(first, 0.999, left)  # says only that r is large
    assert longest[0] == pytest.approx(first[0] * CLEAR_RATIO / 0.03, rel=1e-5)


@pytest.mark.parametrize(("recipe", "most"), [(FedMRN, 0.51), (FedMRNS, 0.71)])
def test_more_bits_than_masks_learn_by_are_left_unused(recipe: type[FedMRN], most: float) -> None:
    """Less noise clips large updates."""
    _, control = controlled(recipe)
    assert most_mask_bits(control.signed) == pytest.approx(most, rel=0.01)
    for spent in (0.2, 0.6, 0.9):
        longest = control.next(control.first(most), spent, most)
        assert np.allclose(control.next(control.first(1.0), spent, 1.0), longest, rtol=0.02)
    ratios, bits = rate_curve()
    aimed = MAX_SIGNED_RATIO if recipe is FedMRNS else MAX_RATIO
    assert np.interp(aimed, ratios, bits) == pytest.approx(most_mask_bits(control.signed))


def test_nothing_left_for_masks_makes_them_as_short_as_they_get() -> None:
    _, control = controlled(FedMRN)
    least, none = (control.next(control.first(left), 0.3, left) for left in (0.001, -0.2))
    assert np.array_equal(least, none)


@pytest.mark.parametrize(("count", "least"), [(300, 0.51), (5_000, 8 * LEAST_BYTES / 5_000), (100_000, 0.058)])
def test_masks_of_few_weights_are_not_cut_to_nothing(count: int, least: float) -> None:
    assert least_mask_bits(count) == pytest.approx(least, rel=0.01)


@pytest.mark.parametrize(("words", "limited"), [(("model=mlp", "model.hidden=[256]"), True), ((), False)])
def test_noise_is_limited_by_the_weights_of_a_model_without_batch_norm(words: tuple[str, ...], limited: bool) -> None:
    few = ("rounds=2", "clients=2", "clients_per_round=2", "local.steps=8")
    worker = build_worker(load_config((*words, *few, "uplink.bits=0.01")))
    _, protocol = worker.model()
    most = [SCALE_LIMIT * float(np.sqrt(np.square(protocol.initial).mean()))]
    scales: list[float] = []
    told: list[bool] = []

    def on_round(state: GlobalState, report: RoundReport) -> None:
        assert state.rate_state is not None
        most.append(SCALE_LIMIT * float(np.sqrt(np.square(state.vector).mean())))
        scales.append(float(state.rate_state[0]))
        told.append(report.noise_limited)

    first = protocol.begin().rate_state
    assert first is not None
    run_rounds(worker, on_round=on_round)
    assert told == [limited] * 2
    assert (np.array([first[0], *scales]) == pytest.approx(np.array(most), rel=1e-5)) is limited


def test_weights_of_zero_limit_no_noise() -> None:
    state = np.array([5, np.nan, 0], np.float32)
    assert limited_scale(state, 0.0) is state
    assert limited_scale(state, 5.0) is state
    assert limited_scale(state, 2.0).tolist()[0] == 2.0


def cnn(channels: int, classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((channels, 16), (16, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 2 * 2, classes))


@pytest.mark.slow
def test_a_cnn_without_batch_norm_learns_where_clients_have_two_labels() -> None:
    model_words = ("model=own", "model._target_=tests.federation.test_rate_control.cnn", "rounds=12")
    words = (*model_words, "partition=label_shard", "partition.labels_per_client=2")
    worker = build_worker(load_config(words))
    model, _ = worker.model()
    model.load(*final_state(words))
    assert evaluate(model, worker.task, worker.task.load("test")).headline > 0.7


@pytest.mark.slow
def test_a_small_model_learns_with_a_budget_that_framing_alone_exceeds() -> None:
    words = ("model=mlp", "model.hidden=[16]", "rounds=8", "clients=4", "clients_per_round=4", "uplink.bits=0.5")
    worker = build_worker(load_config(words))
    model, protocol = worker.model()
    assert protocol.bits_beside > 0.5 * protocol.parameters
    model.load(*final_state(words))
    assert evaluate(model, worker.task, worker.task.load("test")).headline > 0.8
