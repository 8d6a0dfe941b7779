"""Every method there is, held to its own claims; a new one is found by itself."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmrn_app.config import CONF, load_config
from fedmrn_app.data.sets import load_images
from fedmrn_app.errors import ConfigError, PayloadError
from fedmrn_app.learning.evaluate import evaluate
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.methods import ClientUpdate, Common, Method, Noise, PostTraining, build_method, find_methods
from fedmrn_app.noise import Float32Array
from fedmrn_app.shapes import Shapes, sizes_of
from fedmrn_app.wire.body import CODED, CODERS, PLAIN, Body
from tests.reference import reference_state
from tests.test_fedmrn import SEED, common, new_model, task

METHODS = sorted(find_methods())
COMPRESSORS = [name for name in METHODS if issubclass(find_methods()[name], PostTraining)]
SHAPES = ((20, 30, 3, 3), (7, 11), (1, 1))
COUNT = sum(sizes_of(SHAPES))

# test accuracy on the digits after ten rounds of four clients; FedPM has but a random network to choose from
BOUNDS = dict.fromkeys(METHODS, 0.94) | {"fedpm": 0.5, "fedsparsify": 0.85, "fedscalar": 0.35, "submodel": 0.45}
RUNS = dict.fromkeys(METHODS, ("rounds=10", "local.epochs=3")) | {  # a number a round needs more and fewer weights
    "fedscalar": ("experiment=fedscalar_digits", "rounds=100", "model.hidden=[]", "local.lr=0.003"),
}


def method(name: str, **options: object) -> Method:
    return build_method(name, options, Noise(), seed=3)


def compressor(name: str, **options: object) -> PostTraining:
    built = method(name, **options)
    assert isinstance(built, PostTraining)
    return built


def trained(name: str) -> tuple[FlatModel, ClientUpdate]:
    model = new_model()
    vector = method(name).first_vector(model)
    model.weights.copy_(torch.from_numpy(vector))
    local = task(vector=vector)
    return model, method(name).train(model, dataclasses.replace(local, common=held_of(name, local.common)))


def start(name: str) -> Common:
    """What is known before `trained`, or wherever the method is used on such a model."""
    return held_of(name, common(method(name).first_vector(new_model())))


def held_of(name: str, known: Common) -> Common:
    return dataclasses.replace(known, held=method(name).held(known.shapes, 0, 1, SEED))


def toy(shapes: Shapes) -> Common:
    """A model of which some weights have moved, in both directions."""
    vector = np.random.default_rng(5).standard_normal(sum(sizes_of(shapes))).astype(np.float32)
    return Common(shapes, vector, np.where(vector > 1, np.float32(0), vector))


def updates(kind: str, count: int = COUNT) -> Float32Array:
    random = np.random.default_rng(4)
    x = random.standard_normal(count).astype(np.float32) * np.float32(1e-3)
    if kind == "sparse":
        x *= random.random(count) < 0.01
    return {"random": x, "sparse": x, "constant": np.full_like(x, 0.01), "zero": np.zeros_like(x)}[kind]


@pytest.mark.parametrize("name", METHODS)
def test_has_a_file_of_its_own_in_conf(name: str) -> None:
    assert (CONF / "strategy" / f"{name}.yaml").is_file()
    assert sorted(path.stem for path in Path(CONF / "strategy").glob("*.yaml")) == METHODS


@pytest.mark.parametrize("name", METHODS)
def test_trained_update_round_trip_and_size(name: str) -> None:
    model, update = trained(name)
    decoded = method(name).decode(update.body, SEED, start(name))
    assert len(update.body) <= method(name).max_body_bytes(model.shapes)
    assert decoded.dtype == np.float32
    assert decoded.shape == (model.weights.numel(),)
    assert np.isfinite(decoded).all()
    assert decoded.any()
    assert update.loss > 0
    assert update.train_seconds > update.compress_seconds >= 0


@pytest.mark.parametrize("name", METHODS)
def test_global_vector_survives_the_way_down(name: str) -> None:
    built, model = method(name), new_model()
    vector = built.first_vector(model)
    replies = [built.decode(trained(name)[1].body, SEED, start(name)) for _ in range(3)]
    for state in (vector, built.combine(vector, np.mean(replies, axis=0, dtype=np.float32), 3)):
        assert state.shape == (model.weights.numel(),)
        assert np.array_equal(
            built.receive(built.send(state, model.shapes, None), model.shapes, state, None).vector, state
        )
        assert built.weights(state, model.shapes).shape == state.shape


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("kind", ["random", "sparse", "constant", "zero"])
def test_any_update_fits_the_declared_size(name: str, kind: str) -> None:
    x = updates(kind)
    body = compressor(name).compress(x, SEED, toy(SHAPES), np.random.default_rng(0))
    assert len(body) <= compressor(name).max_body_bytes(SHAPES)
    decoded = compressor(name).decode(body, SEED, toy(SHAPES))
    assert np.isfinite(decoded).all()
    if kind == "zero":
        assert not decoded.any()


@pytest.mark.parametrize("name", METHODS)
def test_training_is_deterministic_and_leaves_the_global_generator_alone(name: str) -> None:
    state = torch.get_rng_state()
    (first, update), (second, again) = trained(name), trained(name)
    assert update.body == again.body
    assert torch.equal(first.dense, second.dense)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", METHODS)
def test_ten_rounds_on_digits(name: str) -> None:
    overrides = (*RUNS[name], "clients=4", "clients_per_round=4", f"strategy={name}")
    overrides = tuple(word for word in overrides if "experiment=" + name not in overrides or word != f"strategy={name}")
    config = load_config(overrides)
    model = config.build_flat_model()
    model.load(*reference_state(overrides))
    assert evaluate(model, load_images(config.dataset, "test"))[0] >= BOUNDS[name]


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_hostile_bodies_are_refused_or_finite(name: str, data: st.DataObject) -> None:
    """Random bytes, and bytes of a real body changed, cut off or added to."""
    shapes = SHAPES if data.draw(st.booleans()) else ((3, 5),)
    body = Body(data.draw(st.binary(max_size=120)), data.draw(st.sampled_from([PLAIN, CODED, 2, 255])))
    if name in COMPRESSORS and data.draw(st.booleans()):
        x = updates("sparse", sum(sizes_of(shapes)))
        whole = compressor(name).compress(x, 1, toy(shapes), np.random.default_rng(0))
        real = bytearray(whole.data)
        for _ in range(data.draw(st.integers(0, 3))):
            real[data.draw(st.integers(0, len(real) - 1))] = data.draw(st.integers(0, 255))
        changed = bytes(real[: data.draw(st.integers(0, len(real)))]) + data.draw(st.binary(max_size=5))
        body = Body(changed, data.draw(st.sampled_from([whole.coder, PLAIN, CODED])))
    try:
        update = method(name).decode(body, 1, held_of(name, toy(shapes)))
    except PayloadError:
        return
    assert update.shape == (sum(sizes_of(shapes)),)
    assert np.isfinite(update).all()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("change", ["shorter", "longer", "empty"])
def test_body_of_another_length_is_refused(name: str, change: str) -> None:
    _, update = trained(name)
    data = bytes(update.body.data)
    data = {"shorter": data[:-1], "longer": data + b"\0", "empty": b""}[change]
    with pytest.raises(PayloadError, match="body"):
        method(name).decode(Body(data, update.body.coder), SEED, start(name))


@pytest.mark.parametrize("name", METHODS)
def test_coded_and_packed_bodies_say_the_same(name: str) -> None:
    vector = method(name).first_vector(new_model())
    bodies = []
    for coder in CODERS:
        built, model = build_method(name, {}, Noise(), 3, coder), new_model()
        model.weights.copy_(torch.from_numpy(vector))
        local = task(vector=vector)
        bodies.append(built.train(model, dataclasses.replace(local, common=held_of(name, local.common))).body)
    auto, packed = bodies
    assert packed.coder == PLAIN
    assert len(auto) <= len(packed)
    read = [method(name).decode(body, SEED, start(name)) for body in bodies]
    assert np.array_equal(read[0], read[1])
    for form in (2, 255):
        with pytest.raises(PayloadError, match=f"body is in form {form}"):
            method(name).decode(Body(packed.data, form), SEED, start(name))


@pytest.mark.parametrize("name", METHODS)
def test_unknown_options_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"strategy\.nonsense=1: {name} has no such option"):
        method(name, nonsense=1)


def test_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"strategy\.name=fedfoo: no such method; there are drive, eden, fedavg, "):
        build_method("fedfoo", {}, Noise())
