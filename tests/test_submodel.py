"""Sub-models: who holds what and when, what travels, and what the mean is."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from fedmrn_app.client_app import Party
from fedmrn_app.config import load_config
from fedmrn_app.errors import ConfigError, PayloadError
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.models import NARROWABLE, ImageShape, build_model
from fedmrn_app.learning.models.narrow import Scaler
from fedmrn_app.methods import Common, Noise, build_method
from fedmrn_app.methods.submodel import SubModel
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.payload import HEADER_SIZE
from tests.reference import reference_run, reference_state
from tests.test_fedmrn import new_model, task

SHAPES = ((10, 100), (3, 7))
COUNT = 1021
SMALL = ("rounds=3", "clients=4", "clients_per_round=4", "local.epochs=1", "local.lr=0.03", "uplink.dense_bits=32")


def method(**options: object) -> SubModel:
    return SubModel(Noise(), seed=5, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("capacity", [1.0, 0.5, 0.25, 0.3, 1 / 16, 0.001])
def test_every_window_is_visited_once_an_epoch(capacity: float) -> None:
    built = method(capacities=[capacity])
    size = math.ceil(1000 * capacity) + math.ceil(21 * capacity)
    windows = math.ceil(1 / capacity)
    orders = set()
    for epoch in range(3):
        rounds = range(1 + epoch * windows, 1 + (epoch + 1) * windows)
        visits = [built.held(SHAPES, 0, server_round, 7) for server_round in rounds]
        assert all(held.sum() == size for held in visits)
        assert np.logical_or.reduce(visits).all()
        assert len({held[:1000].tobytes() for held in visits}) == min(windows, 1000)
        orders.add(tuple(int(np.argmax(held)) for held in visits))
    assert len(orders) > 1 or windows < 4


def test_random_masks_have_the_capacity_and_differ() -> None:
    shapes = ((1000, 1000),)
    built = method(masking="random", capacities=[0.25])
    one, other = built.held(shapes, 0, 1, 7), built.held(shapes, 0, 2, 8)
    assert one.mean() == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / 1e6) ** 0.5)
    assert (one & other).mean() == pytest.approx(1 / 16, abs=0.002)
    assert np.array_equal(one, built.held(shapes, 3, 9, 7))  # the seed alone decides


def test_static_and_full() -> None:
    static = [method(masking="static", capacities=[0.1]).held(SHAPES, 0, r, r) for r in range(1, 9)]
    assert all(held.nonzero()[0].tolist() == [*range(100), 1000, 1001, 1002] for held in static)
    assert method(masking="full", capacities=[0.1]).held(SHAPES, 0, 1, 1).all()


def test_capacities_are_spread_over_the_clients_and_stay() -> None:
    built = method()
    drawn = [built.capacity(client) for client in range(1000)]
    assert drawn == [built.capacity(client) for client in range(1000)]
    assert all(drawn.count(capacity) == pytest.approx(200, abs=60) for capacity in built.capacities)


@pytest.mark.parametrize("masking", ["random", "rolling"])
def test_with_all_weights_it_is_fedavg(masking: str) -> None:
    whole = (*SMALL, "strategy=submodel", f"strategy.masking={masking}", "strategy.capacities=[1.0]")
    assert reference_run(whole) == reference_run((*SMALL, "strategy=fedavg"))
    covered = (*whole, "strategy.aggregate=coverage")
    np.testing.assert_allclose(reference_state(covered)[0], reference_state(whole)[0], atol=1e-6)


@pytest.mark.parametrize("aggregate", ["fill", "coverage"])
@pytest.mark.parametrize("masking", ["random", "rolling", "static"])
def test_what_nobody_held_keeps_its_bits(masking: str, aggregate: str) -> None:
    overrides = (
        *SMALL, "rounds=1", "strategy=submodel", f"strategy.masking={masking}", f"strategy.aggregate={aggregate}",
        "strategy.capacities=[0.25]",
    )  # fmt: skip
    party = Party(overrides)
    built, (model, first) = party.method, party.model()
    held = np.zeros(first.size, bool)
    for client in range(4):
        mask = built.held(model.shapes, client, 1, built.client_seed(0, 1, client))
        assert mask is not None
        held |= mask
    vector, _ = reference_state(overrides)
    assert 0.2 < held.mean() < 0.8
    assert np.array_equal(vector[~held], first[~held])
    assert (vector[held] != first[held]).mean() > 0.2  # the next layer sees nothing of channels that nobody held


def test_only_held_values_travel_and_others_are_zero_in_training() -> None:
    built = method(masking="random", capacities=[0.25])
    model = new_model()
    vector = model.state()[0]
    held = built.held(model.shapes, 0, 1, 7)
    sent = built.send(vector, model.shapes, held)
    assert sent.nbytes == 4 * held.sum()
    common = built.receive(sent, model.shapes, vector, held)
    assert np.array_equal(common.vector, np.where(held, vector, 0))
    local = task()
    model.load(common.vector, model.state()[1])
    model.module.register_forward_pre_hook(lambda *_: seen.append(model.weights.clone()))
    seen: list[torch.Tensor] = []
    update = built.train(model, type(local)(local.batches, 0.1, "float32", 7, common, 2))
    assert all((weights.numpy()[~held] == 0).all() for weights in seen)
    assert not torch.equal(seen[0], seen[-1])
    assert len(update.body) == 4 * held.sum()
    decoded = built.decode(update.body, 7, common)
    assert not decoded[~held].any()
    np.testing.assert_allclose(common.vector + decoded, model.weights.numpy(), atol=1e-7)
    with pytest.raises(PayloadError, match="body has"):
        built.decode(Body(bytes(update.body.data) + b"\0" * 4), 7, common)


def test_coverage_is_the_mean_over_the_holders() -> None:
    same: tuple[str, ...] = (*SMALL, "rounds=1", "strategy=submodel")
    overrides = (*same, "strategy.masking=static", "strategy.capacities=[0.5]")
    fill, cover = (reference_state((*overrides, f"strategy.aggregate={kind}"))[0] for kind in ("fill", "coverage"))
    np.testing.assert_allclose(fill, cover, atol=1e-7)  # everybody holds the same here
    overrides = (*same, "strategy.capacities=[1.0,0.5]", "clients=2", "clients_per_round=2", "seed=1")
    party = Party(overrides)
    (model, first), built = party.model(), party.method
    masks = [built.held(model.shapes, client, 1, 0) for client in range(2)]
    fill, cover = (reference_state((*overrides, f"strategy.aggregate={kind}"))[0] for kind in ("fill", "coverage"))
    counts = np.sum([mask for mask in masks if mask is not None], axis=0)
    assert set(np.unique(counts)) <= {0, 1, 2}
    share = np.array([len(rows) for rows in party.rows], float) / sum(len(rows) for rows in party.rows)
    held = share @ np.array([mask for mask in masks if mask is not None])
    np.testing.assert_allclose((cover - first) * held, fill - first, atol=1e-7)


NARROW: list[tuple[str, ImageShape, dict[str, Any]]] = [
    ("digits", ImageShape(1, 8, 8, 10), {"norm": "static"}),
    ("cnn4", ImageShape(3, 32, 32, 10), {"norm": "static"}),
    ("cnn8", ImageShape(1, 28, 28, 10), {"norm": "static"}),
    ("mlp", ImageShape(1, 8, 8, 10), {"hidden": (50, 30)}),
    ("preact_resnet18", ImageShape(3, 32, 32, 10), {}),
]


def test_every_model_that_can_be_narrowed_is_tested() -> None:
    assert {name for name, _, _ in NARROW} == set(NARROWABLE)


@pytest.mark.parametrize("capacity", [0.5, 0.3, 1 / 16])
@pytest.mark.parametrize("masking", ["random", "rolling", "static"])
@pytest.mark.parametrize(("name", "shape", "options"), NARROW)
def test_narrower_model_is_the_full_one_without_the_other_channels(
    name: str, shape: ImageShape, options: dict[str, Any], masking: str, capacity: float
) -> None:
    full = FlatModel(build_model(name, shape, 1, **options), whole=True)
    narrow = FlatModel(build_model(name, shape, 2, width=capacity, **options), whole=True)
    built = method(masking=masking, granularity="channel", capacities=[capacity])
    held = built.held(full.shapes, 0, 3, 99)
    generator = torch.Generator().manual_seed(0)
    vector = (torch.randn(full.weights.shape, generator=generator) * 0.1 + 0.05).numpy()
    full.load(np.where(held, vector, np.float32(0)), full.state()[1])
    narrow.load(vector[held], narrow.state()[1])
    x = torch.randn(4, shape.channels, shape.height, shape.width, generator=generator)
    with torch.no_grad():
        expected, got = full.module.eval()(x), narrow.module.eval()(x)
    assert expected.std() > 0.01
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_scaler_makes_up_for_missing_channels_in_training_only() -> None:
    x = torch.tensor([1.0, -2.0])
    scaler = Scaler(0.25)
    assert torch.equal(scaler.train()(x), 4 * x)
    assert torch.equal(scaler.eval()(x), x)
    module = build_model("preact_resnet18", ImageShape(3, 32, 32, 10), 0, width=0.25)
    convolutions = sum(isinstance(m, torch.nn.Conv2d) for m in module.modules())
    passes = [0]
    for part in module.modules():
        if isinstance(part, Scaler):
            part.register_forward_hook(lambda *_: passes.__setitem__(0, passes[0] + 1))
    module(torch.zeros(2, 3, 32, 32))
    assert passes[0] == convolutions == 20
    assert not [name for name, _ in module.named_buffers()]


CHANNEL = (*SMALL, "strategy=submodel", "strategy.granularity=channel", "model=digits", "model.norm=static")


@pytest.mark.parametrize("masking", ["random", "rolling"])
def test_narrow_clients_send_their_channels_only(masking: str) -> None:
    overrides = (*CHANNEL, "rounds=1", f"strategy.masking={masking}", "strategy.capacities=[0.25]")
    party = Party(overrides)
    built, (full, first) = party.method, party.model()
    assert full.dense.numel() == 0
    union = np.zeros(first.size, bool)
    for client in range(4):
        seed = built.client_seed(0, 1, client)
        held = built.held(full.shapes, client, 1, seed)
        assert held is not None
        union |= held
        sent = built.send(first, full.shapes, held)
        data, _ = party.train(client, 1, seed, sent, np.zeros(0, np.float32))
        assert sent.nbytes == 4 * held.sum() == len(data) - HEADER_SIZE
    assert party.model(0.25)[0].weights.numel() == (len(data) - HEADER_SIZE) / 4 < 0.1 * first.size
    vector, _ = reference_state(overrides)
    assert (masking == "rolling") == (union.mean() < 0.1)
    assert np.array_equal(vector[~union], first[~union])
    assert (vector[union] != first[union]).mean() > 0.9


def test_with_all_channels_it_is_fedavg() -> None:
    whole = reference_state((*CHANNEL, "strategy.capacities=[1.0]"))[0]
    parts = reference_state((*SMALL, "strategy=fedavg", "model=digits", "model.norm=static"))
    np.testing.assert_allclose(np.sort(whole), np.sort(np.concatenate(parts)), atol=1e-6)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("model=resnet18", "dataset=cifar10"), r"model\.name=resnet18: cannot be narrowed; take one of cnn4, "),
        (("model=digits",), r"model\.name=digits: running statistics .*model\.norm=static"),
        (("model=digits", "model.norm=some"), r"norm=some is not one of tracked, static"),
    ],
)
def test_models_that_cannot_be_narrowed_are_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(("strategy=submodel", "strategy.granularity=channel", *overrides))


def test_projection_onto_the_ball() -> None:
    w = np.array([3.0, 4.0], np.float32)
    zero = np.zeros(2, np.float32)
    np.testing.assert_allclose(method(radius=1.0).combine(w, zero, 1), [0.6, 0.8], rtol=1e-6)
    assert np.array_equal(method(radius=5.1).combine(w, zero, 1), w)
    assert np.array_equal(method().combine(w, zero, 1), w)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"masking": "some"}, r"strategy\.masking=some: must be one of random, rolling, static, full"),
        ({"granularity": "layer"}, r"strategy\.granularity=layer: must be one of weight, channel"),
        ({"aggregate": "sum"}, r"strategy\.aggregate=sum: must be one of fill, coverage"),
        ({"capacities": []}, r"strategy\.capacities=\[\]"),
        ({"capacities": [0.5, 2.0]}, r"strategy\.capacities=\[0\.5, 2\.0\]"),
        ({"radius": 0.0}, r"strategy\.radius=0\.0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_method("submodel", options, Noise())


def test_common_without_a_choice_holds_all() -> None:
    assert Common(((1, 2),), np.zeros(2, np.float32), np.zeros(2, np.float32)).held_weights().all()
