"""Sub-model training: which weights clients hold, which values travel, and how the mean is computed."""

import dataclasses
import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from fedmrn_app.config.build import build_worker, find_conf
from fedmrn_app.config.compose import load_config
from fedmrn_app.config.targets import locate
from fedmrn_app.errors import ConfigError, PayloadError
from fedmrn_app.federation.downlink import PackedDownlink
from fedmrn_app.federation.protocol import Order, RunProtocol
from fedmrn_app.federation.worker import Worker
from fedmrn_app.layout import Layout
from fedmrn_app.learning.flat import FlatModel, state_sha256
from fedmrn_app.learning.models.build import build_model
from fedmrn_app.methods.method import Method, RunOptions
from fedmrn_app.methods.submodel import SubModel
from fedmrn_app.methods.submodel_parts import PartOfModel, classifier_labels
from fedmrn_app.noise import Noise
from fedmrn_app.tasks.classification import Classification
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.payload import HEADER_SIZE
from tests.helpers import final_state, image_task, local_round, make_method, new_model

LAYOUT = Layout(((10, 100), (3, 7)))
SMALL = ("rounds=3", "clients=4", "clients_per_round=4", "local.epochs=1", "local.lr=0.03", "uplink.dense_bits=32")


def method(**options: Any) -> Method:
    return SubModel(**options).build(RunOptions(Noise(), seed=5))


def selection(**options: Any) -> PartOfModel:
    part = method(**options).selection
    assert isinstance(part, PartOfModel)
    return part


@pytest.mark.parametrize("capacity", [1.0, 0.5, 0.25, 0.3, 1 / 16, 0.001])
def test_every_window_is_visited_once_an_epoch(capacity: float) -> None:
    part = selection(capacities=[capacity])
    size = math.ceil(1000 * capacity) + math.ceil(21 * capacity)
    windows = math.ceil(1 / capacity)
    orders = set()
    for epoch in range(3):
        rounds = range(1 + epoch * windows, 1 + (epoch + 1) * windows)
        visits = [part.submodel_mask(LAYOUT, 0, server_round, 7) for server_round in rounds]
        assert all(held.sum() == size for held in visits)
        assert np.logical_or.reduce(visits).all()
        assert len({held[:1000].tobytes() for held in visits}) == min(windows, 1000)
        orders.add(tuple(int(np.argmax(held)) for held in visits))
    assert len(orders) > 1 or windows < 4


def test_random_static_and_full_parts() -> None:
    layout = Layout(((1000, 1000),))
    part = selection(masking="random", capacities=[0.25])
    one, other = part.submodel_mask(layout, 0, 1, 7), part.submodel_mask(layout, 0, 2, 8)
    assert one.mean() == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / 1e6) ** 0.5)
    assert (one & other).mean() == pytest.approx(1 / 16, abs=0.002)
    assert np.array_equal(one, part.submodel_mask(layout, 3, 9, 7))  # the seed alone decides
    static = [selection(masking="static", capacities=[0.1]).submodel_mask(LAYOUT, 0, r, r) for r in range(1, 9)]
    assert all(held.nonzero()[0].tolist() == [*range(100), 1000, 1001, 1002] for held in static)
    assert selection(masking="full", capacities=[0.1]).submodel_mask(LAYOUT, 0, 1, 1).all()


def test_only_channels_make_models_narrower() -> None:
    assert selection(granularity="weight").widths == selection(granularity="channel", masking="full").widths == (1.0,)
    part = selection(granularity="channel")
    assert part.widths == part.options.capacities
    assert [part.width(client, 1) for client in range(9)] == [part.capacity(client, 1) for client in range(9)]
    assert {selection().width(client, 1) for client in range(9)} == {1.0}


@pytest.mark.parametrize("masking", ["random", pytest.param("rolling", marks=pytest.mark.slow)])
def test_with_all_weights_it_is_fedavg(masking: str) -> None:
    whole = (*SMALL, "strategy=submodel", f"strategy.masking={masking}", "strategy.capacities=[1.0]")
    assert state_sha256(*final_state(whole)) == state_sha256(*final_state((*SMALL, "strategy=fedavg")))
    covered = (*whole, "strategy.aggregate=coverage")
    np.testing.assert_allclose(final_state(covered)[0], final_state(whole)[0], atol=1e-6)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("aggregate", ["fill", "coverage"])
@pytest.mark.parametrize("masking", ["random", "rolling", "static"])
def test_weights_that_nobody_held_keep_their_bits(masking: str, aggregate: str) -> None:
    overrides = (
        *SMALL, "rounds=1", "strategy=submodel", f"strategy.masking={masking}", f"strategy.aggregate={aggregate}",
        "strategy.capacities=[0.25]",
    )  # fmt: skip
    worker = build_worker(load_config(overrides))
    first = worker.model()[1].initial
    held = np.logical_or.reduce(held_by_all(worker))
    vector, _ = final_state(overrides)
    assert 0.2 < held.mean() < 0.8
    assert np.array_equal(vector[~held], first[~held])
    assert (vector[held] != first[held]).mean() > 0.2  # channels that nobody held give no gradient


def held_by_all(worker: Worker) -> list[Any]:
    """What each client holds in the first round."""
    built, layout = worker.method, worker.model()[1].layout
    return [
        built.selection.submodel_mask(layout, c, 1, built.client_seed(0, 1, c)) for c in range(worker.settings.clients)
    ]


def test_only_held_values_travel_and_others_are_zero_in_training() -> None:
    built = make_method("submodel", masking="random", capacities=[0.25])
    model = new_model()
    vector, dense = model.state()
    held = built.selection.submodel_mask(model.layout, 0, 1, 7)
    assert held is not None
    protocol = RunProtocol.of(built, model, seed=0, dense_bits=32)
    downlink = PackedDownlink(protocol)
    sent = downlink.pack(vector, held)
    assert sent.nbytes == 4 * held.sum()
    known = downlink.unpack(sent, held)
    assert np.array_equal(known.vector, np.where(held, vector, 0))
    model.load(known.vector, dense)
    model.module.register_forward_pre_hook(lambda *_: seen.append(model.weights.clone()))
    seen: list[torch.Tensor] = []
    trained = built.training.train(model, dataclasses.replace(local_round(), seed=7, context=known))
    body = built.codec.encode(trained.x, known, 7, 2)
    assert all((weights.numpy()[~held] == 0).all() for weights in seen)
    assert not torch.equal(seen[0], seen[-1])
    assert len(body) == 4 * held.sum()
    decoded = built.codec.decode(body, known, 7)
    assert not decoded[~held].any()
    np.testing.assert_allclose(known.vector + decoded, model.weights.numpy(), atol=1e-7)
    with pytest.raises(PayloadError):
        built.codec.decode(Body(bytes(body.data) + b"\0" * 4), known, 7)


@pytest.mark.slow
def test_coverage_is_the_mean_over_the_holders() -> None:
    same: tuple[str, ...] = (*SMALL, "rounds=1", "strategy=submodel")
    overrides = (*same, "strategy.masking=static", "strategy.capacities=[0.5]")
    fill, cover = (final_state((*overrides, f"strategy.aggregate={kind}"))[0] for kind in ("fill", "coverage"))
    np.testing.assert_allclose(fill, cover, atol=1e-7)  # all clients hold the same part
    overrides = (*same, "strategy.capacities=[1.0,0.5]", "clients=2", "clients_per_round=2", "seed=1")
    worker = build_worker(load_config(overrides))
    first, layout = worker.model()[1].initial, worker.model()[1].layout
    masks = np.array([worker.method.selection.submodel_mask(layout, client, 1, 0) for client in range(2)])
    fill, cover = (final_state((*overrides, f"strategy.aggregate={kind}"))[0] for kind in ("fill", "coverage"))
    assert set(np.unique(masks.sum(0))) <= {0, 1, 2}
    counts = np.array([worker.sample_count(client) for client in range(2)])
    held = (counts / counts.sum()) @ masks
    np.testing.assert_allclose((cover - first) * held, fill - first, atol=1e-7)


NARROW: list[tuple[str, Classification, dict[str, Any]]] = [
    ("digits", image_task(1, 8), {"norm": "static"}),
    ("cnn4", image_task(3, 32), {"norm": "static"}),
    ("cnn8", image_task(1, 28), {"norm": "static"}),
    ("mlp", image_task(1, 8), {"hidden": (50, 30)}),
    ("preact_resnet18", image_task(3, 32), {}),
]


def target_of(name: str) -> Any:
    values: Any = OmegaConf.to_container(OmegaConf.load(find_conf() / "model" / f"{name}.yaml"))
    return locate(values["_target_"], "model") if values.get("_target_", "???") != "???" else None


def test_every_model_that_can_be_narrowed_is_tested() -> None:
    targets = {path.stem: target_of(path.stem) for path in (find_conf() / "model").glob("*.yaml")}
    narrowable = {name for name, t in targets.items() if t and "width" in inspect.signature(t).parameters}
    assert {name for name, _, _ in NARROW} == narrowable


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize("capacity", [0.3, *(pytest.param(one, marks=pytest.mark.slow) for one in (0.5, 1 / 16))])
@pytest.mark.parametrize("masking", ["random", "rolling", "static"])
@pytest.mark.parametrize(("name", "task", "options"), NARROW, ids=[name for name, _, _ in NARROW])
def test_narrower_model_is_the_full_one_without_the_other_channels(
    name: str, task: Classification, options: dict[str, Any], masking: str, capacity: float
) -> None:
    full = FlatModel(build_model(target_of(name), options, task, 1), whole=True)
    narrow = FlatModel(build_model(target_of(name), options, task, 2, width=capacity), whole=True)
    held = selection(masking=masking, granularity="channel", capacities=[capacity]).submodel_mask(full.layout, 0, 3, 99)
    generator = torch.Generator().manual_seed(0)
    vector = (torch.randn(full.weights.shape, generator=generator) * 0.1 + 0.05).numpy()
    full.load(np.where(held, vector, np.float32(0)), full.state()[1])
    narrow.load(vector[held], narrow.state()[1])
    x = torch.randn(4, *task.inputs()["shape"], generator=generator)
    with torch.no_grad():
        expected, got = full.module.eval()(x), narrow.module.eval()(x)
    assert expected.std() > 0.01
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


CHANNEL = (*SMALL, "strategy=submodel", "strategy.granularity=channel", "model=digits", "model.norm=static")


@pytest.mark.parametrize("masking", ["random", "rolling"])
def test_narrow_clients_send_their_channels_only(masking: str) -> None:
    overrides = (*CHANNEL, "rounds=1", f"strategy.masking={masking}", "strategy.capacities=[0.25]")
    worker = build_worker(load_config(overrides))
    full, protocol = worker.model()
    assert full.dense.numel() == 0
    first, masks = protocol.initial.copy(), held_by_all(worker)
    for client, held in enumerate(masks):
        sent = PackedDownlink(protocol).pack(first, held)
        seed = worker.method.client_seed(0, 1, client)
        reply = worker.train(Order(client, 1, seed, sent, np.zeros(0, np.float32)))
        assert sent.nbytes == 4 * held.sum() == len(reply.payload) - HEADER_SIZE
        assert worker.model(0.25)[0].weights.numel() == held.sum() < 0.1 * first.size
    union = np.logical_or.reduce(masks)
    vector, _ = final_state(overrides)
    assert (masking == "rolling") == (union.mean() < 0.1)
    assert np.array_equal(vector[~union], first[~union])
    assert (vector[union] != first[union]).mean() > 0.9


@pytest.mark.slow
def test_with_all_channels_it_is_fedavg() -> None:
    whole = final_state((*CHANNEL, "strategy.capacities=[1.0]"))[0]
    parts = final_state((*SMALL, "strategy=fedavg", "model=digits", "model.norm=static"))
    np.testing.assert_allclose(np.sort(whole), np.sort(np.concatenate(parts)), atol=1e-6)


OWN = (*SMALL, "rounds=1", "strategy=submodel", "strategy.granularity=channel", "strategy.aggregate=coverage",
       "model=mlp", "model.hidden=[16]", "partition=label_shard", "strategy.capacities=[1.0,0.25]")  # fmt: skip


@pytest.mark.parametrize("masking", ["rolling", "random"])
@pytest.mark.parametrize("draws", ["aligned", "independent"])
def test_rows_of_the_classifier_are_averaged_over_clients_with_their_label(masking: str, draws: str) -> None:
    """Against the mean written out from the clients' own updates."""
    overrides = (*OWN, f"strategy.masking={masking}", f"strategy.draws={draws}", "strategy.label_rows=own")
    worker = build_worker(load_config(overrides))
    full, protocol = worker.model()
    first, masks = protocol.initial.copy(), held_by_all(worker)
    total, weight = np.zeros(first.size), np.zeros(first.size)
    labels_of = np.full(first.size, -1)
    labels_of[-10:] = np.arange(10)  # the last parameters are the classifier's biases, and before them its matrix
    features = full.layout.shapes[-2][1]
    labels_of[-10 - 10 * features : -10] = np.repeat(np.arange(10), features)
    for client, held in enumerate(masks):
        seed = worker.method.client_seed(0, 1, client)
        order = Order(client, 1, seed, PackedDownlink(protocol).pack(first, held), np.zeros(0, np.float32))
        reply = worker.train(order)
        model = worker.model(worker.method.selection.width(client, 1))[0]
        trained = first.copy()
        if draws == "aligned" or masking == "rolling":
            trained[held] = model.weights.numpy()
        present = np.unique(np.asarray(worker.samples_of(client).y))
        assert len(present) == 3
        counts = held & ((labels_of < 0) | np.isin(labels_of, present))
        assert len(reply.payload) == HEADER_SIZE + 2 + 4 * counts.sum()  # ten labels take two bytes
        total += worker.sample_count(client) * np.where(counts, trained - first, 0)
        weight += worker.sample_count(client) * counts
    vector = final_state(overrides)[0]
    if draws == "aligned" or masking == "rolling":
        np.testing.assert_allclose(vector - first, total / np.maximum(weight, 1), atol=1e-6)
    assert np.array_equal(vector[weight == 0], first[weight == 0])
    assert not np.allclose(vector, final_state((*overrides, "strategy.label_rows=all"))[0], atol=1e-4)


def test_damaged_bodies_with_labels_are_refused() -> None:
    built = method(granularity="channel", aggregate="coverage", label_rows="own", masking="full")
    assert np.array_equal(classifier_labels(Layout(((4, 3), (10, 4)))), np.repeat(np.arange(10), 4))
    layout = Layout(((4, 3), (4,), (10, 4), (10,)))
    context = RunProtocol(method=built, layout=layout, dense_sizes=(), initial=np.zeros(66, np.float32), seed=0,
                          dense_bits=32).context(np.zeros(66, np.float32), None)  # fmt: skip
    x = np.arange(66, dtype=np.float32)
    x[16:] = np.nan
    x[20:24], x[57] = 1, 1  # the client has label 1 only
    body = built.codec.encode(x, context, 0, 0)
    assert len(body) == 2 + 4 * (16 + 5)
    read = built.codec.read(body, context, 0)
    assert read.held is not None
    assert np.flatnonzero(read.held).tolist() == [*range(16), *range(20, 24), 57]
    assert np.array_equal(built.codec.decode(body, context, 0)[read.held], x[read.held])
    data = bytes(body.data)
    for wrong in (b"", data[:1], data[:-4], data + b"0000", b"\x03" + data[1:], data[:1] + b"\xf0" + data[2:]):
        with pytest.raises(PayloadError):
            built.codec.decode(Body(wrong), context, 0)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (("model=resnet18", "dataset=cifar10"), "model.name"),
        (("model=digits",), "model.name"),
        (("model=digits", "model.norm=some"), "model.norm"),
    ],
)
def test_models_that_cannot_be_narrowed_are_refused(overrides: tuple[str, ...], key: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_config(("strategy=submodel", "strategy.granularity=channel", *overrides))
    assert str(refusal.value).startswith(f"{key}=")


def test_projection_onto_the_ball() -> None:
    w = np.array([3.0, 4.0], np.float32)
    zero = np.zeros(2, np.float32)
    np.testing.assert_allclose(method(radius=1.0).server.combine(w, zero, 1), [0.6, 0.8], rtol=1e-6)
    assert np.array_equal(method(radius=5.1).server.combine(w, zero, 1), w)
    assert np.array_equal(method().server.combine(w, zero, 1), w)
