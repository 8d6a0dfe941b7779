"""Every method there is, held to its own claims; a new one is found by itself."""

import gc
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmrn_app.config.build import build_run_method, find_conf
from fedmrn_app.config.compose import load_config
from fedmrn_app.errors import ConfigError, PayloadError
from fedmrn_app.federation.downlink import PackedDownlink
from fedmrn_app.federation.upload import Upload
from fedmrn_app.layout import Layout
from fedmrn_app.methods import build_method, find_methods
from fedmrn_app.methods.method import Method, MethodConfig, RunOptions, encode_with_feedback
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import Noise
from fedmrn_app.wire.body import CODED, CODERS, PLAIN, Body
from tests.helpers import (
    CASES,
    CLIENT,
    COMPRESSORS,
    METHODS,
    SHAPES,
    Client,
    make_method,
    moved,
    squared_error,
    updates,
)

COUNT = Layout(SHAPES).count
NAMES = {case: case.split("-")[0] for case in CASES}
FEEDBACK = [case for case in CASES if "error_feedback" in find_methods()[NAMES[case]].__dataclass_fields__]

ZERO_STAYS_ZERO = ("drive", "eden", "fedavg", "fedscalar", "signsgd", "terngrad", "topk")
NOTHING_IS_NOTHING = [case for case in CASES if NAMES[case] in ZERO_STAYS_ZERO]


@dataclass(frozen=True)
class Trained:
    """A method, and one client's upload after two epochs."""

    method: Method
    client: Client
    upload: Upload

    @property
    def body(self) -> Body:
        return self.upload.payload.body

    def decode(self, body: Body) -> Any:
        return self.method.codec.decode(body, self.client.known, self.client.seed)


@cache
def trained(name: str) -> Trained:
    method = make_method(name)
    client = Client(method)
    return Trained(method, client, client.train()[0])


def held_of(method: Method, known: SharedContext) -> SharedContext:
    """The same, of a client that holds what the method gives it."""
    return SharedContext(known.layout, known.vector, known.first, method.selection.held(known.layout, CLIENT, 1, 1))


@pytest.mark.parametrize("name", METHODS)
def test_has_a_file_of_its_own_in_conf(name: str) -> None:
    folder = find_conf() / "strategy"
    assert (folder / f"{name}.yaml").is_file()
    assert sorted(path.stem for path in Path(folder).glob("*.yaml")) == METHODS
    built = build_run_method(load_config((f"strategy={name}",)))
    assert (built.name, built.code) == (name, find_methods()[name].code)
    assert 0 < built.code < 256  # a byte of the payload


@pytest.mark.parametrize("name", CASES)
def test_trained_update_round_trip_and_size(name: str) -> None:
    case = trained(name)
    payload, decoded = case.upload.payload, case.upload.vector
    assert len(case.body) <= case.method.codec.max_bytes(case.client.layout)
    assert decoded.dtype == np.float32
    assert decoded.shape == (case.client.layout.count,)
    assert np.isfinite(decoded).all()
    assert decoded.any()
    assert payload.loss > 0
    assert payload.train_seconds > 0
    assert payload.compress_seconds >= 0


@pytest.mark.parametrize("name", CASES)
def test_adding_is_decoding_times_a_share(name: str) -> None:
    case = trained(name)
    before = np.random.default_rng(3).standard_normal(case.upload.vector.size).astype(np.float32)
    total = before.copy()
    case.method.codec.read(case.body, case.client.known, case.client.seed).add_to(total, np.float32(40))
    assert total.dtype == np.float32
    np.testing.assert_allclose(total, before + np.float32(40) * case.upload.vector, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_global_vector_survives_the_way_down(name: str) -> None:
    case = trained(name)
    server, layout = case.method.server, case.client.layout
    vector = case.client.round.state.vector
    held = case.method.selection.held(layout, CLIENT, 1, case.client.seed)
    combined = server.combine(vector.copy(), case.upload.vector.copy(), 3)
    for state in (vector, combined):
        assert state.dtype == np.float32
        assert state.shape == (layout.count,)
        downlink = PackedDownlink(case.client.protocol)
        assert np.array_equal(downlink.unpack(downlink.pack(state, None), None).vector, state)
        if held is not None:
            assert held.shape == state.shape
            part = downlink.unpack(downlink.pack(state, held), held)
            assert np.array_equal(part.vector, np.where(held, state, 0))
        assert server.weights(state, layout).shape == state.shape
        sampled = server.sampled(state, layout, 1)
        assert sampled is None or sampled.shape == state.shape


@pytest.mark.parametrize("name", CASES)
def test_who_holds_what_follows_from_round_and_seed(name: str) -> None:
    selection, layout = make_method(name).selection, Layout(SHAPES)
    for client in range(4):
        assert selection.width(client, 1) in selection.widths
        one, again = (make_method(name).selection.held(layout, client, 2, 5) for _ in range(2))
        if one is None or again is None:
            assert one is again
            continue
        assert one.dtype == np.bool_
        assert one.shape == (COUNT,)
        assert one.any()
        assert np.array_equal(one, again)


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("kind", ["random", "sparse", "constant", "zero"])
def test_any_update_fits_the_declared_size(name: str, kind: str) -> None:
    codec, known = make_method(name).codec, moved(SHAPES)
    x = updates(kind, COUNT)
    body = codec.encode(x, known, 7, 0)
    assert np.array_equal(x, updates(kind, COUNT))  # left as it was
    assert len(body) <= codec.max_bytes(Layout(SHAPES))
    decoded = codec.decode(body, known, 7)
    assert decoded.dtype == np.float32
    assert decoded.shape == (COUNT,)
    assert np.isfinite(decoded).all()


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_model_that_is_held_in_part(name: str) -> None:
    """What is not held is zero in the global vector and in the update."""
    codec, whole = make_method(name).codec, moved(SHAPES)
    held = np.random.default_rng(6).random(COUNT) < 0.5
    known = SharedContext(whole.layout, np.where(held, whole.vector, 0), whole.first, held)
    x = updates("random", COUNT) * held
    decoded = codec.decode(codec.encode(x, known, 7, 0), known, 7)
    assert np.isfinite(decoded).all()
    assert np.dot(decoded, x) > 0


@pytest.mark.parametrize("name", NOTHING_IS_NOTHING)
def test_an_update_of_zeros_stays_one(name: str) -> None:
    codec, known = make_method(name).codec, moved(SHAPES)
    assert not codec.decode(codec.encode(updates("zero", COUNT), known, 7, 0), known, 7).any()


@pytest.mark.parametrize("name", CASES)
def test_training_is_deterministic_and_leaves_the_global_generators_alone(name: str) -> None:
    before = global_generators()
    clients = [Client(make_method(name)) for _ in range(2)]
    first, again = (client.train()[0].payload.body for client in clients)
    assert bytes(first.data) == bytes(again.data)
    assert first.form == again.form
    assert torch.equal(clients[0].model.dense, clients[1].model.dense)
    assert global_generators() == before


def global_generators() -> tuple[object, ...]:
    numpys: Any = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), numpys[1].tolist(), numpys[2:], random.getstate()


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_hostile_bodies_are_refused_or_finite(name: str, data: st.DataObject) -> None:
    """Random bytes, and bytes of a real body changed, cut off or added to."""
    method = make_method(name)
    known = held_of(method, moved(SHAPES if data.draw(st.booleans()) else ((3, 5),)))
    body = Body(data.draw(st.binary(max_size=120)), data.draw(st.sampled_from([PLAIN, CODED, 2, 255])))
    if data.draw(st.booleans()):
        if name in COMPRESSORS:
            whole = method.codec.encode(updates("sparse", known.count), known, 1, 0)
        else:
            whole, known = trained(name).body, trained(name).client.known
        real = bytearray(whole.data)
        for _ in range(data.draw(st.integers(0, 3))):
            real[data.draw(st.integers(0, len(real) - 1))] = data.draw(st.integers(0, 255))
        changed = bytes(real[: data.draw(st.integers(0, len(real)))]) + data.draw(st.binary(max_size=5))
        body = Body(changed, data.draw(st.sampled_from([whole.form, PLAIN, CODED])))
    total = np.ones(known.count, np.float32)
    try:
        update = method.codec.decode(body, known, 1)
    except PayloadError:
        with pytest.raises(PayloadError):
            method.codec.read(body, known, 1).add_to(total, np.float32(2))
        assert (total == 1).all()  # as it was
        return
    assert update.dtype == np.float32
    assert update.shape == (known.count,)
    assert np.isfinite(update).all()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("change", ["shorter", "longer", "empty"])
def test_body_of_another_length_is_refused(name: str, change: str) -> None:
    case = trained(name)
    data = bytes(case.body.data)
    data = {"shorter": data[:-1], "longer": data + b"\0", "empty": b""}[change]
    with pytest.raises(PayloadError, match="body") as refusal:
        case.decode(Body(data, case.body.form))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", CASES)
def test_coded_and_packed_bodies_say_the_same(name: str) -> None:
    auto, packed = (Client(make_method(name, coder)).train()[0].payload.body for coder in CODERS)
    assert packed.form == PLAIN
    assert len(auto) <= len(packed)
    case = trained(name)
    assert np.array_equal(case.decode(auto), case.decode(packed))
    for form in (2, 255):
        with pytest.raises(PayloadError, match=f"body is in form {form}"):
            case.decode(Body(packed.data, form))


@pytest.mark.parametrize("name", COMPRESSORS)
def test_error_feedback_goes_around_any_codec_of_updates(name: str) -> None:
    """What is sent plus what is kept is what was to be sent."""
    codec, known = make_method(name).codec, moved(SHAPES)
    x, residual = updates("random", COUNT), np.zeros(COUNT, np.float32)
    for seed in range(3):
        before = residual
        body, residual = encode_with_feedback(codec, x, before, known, seed, seed)
        assert residual.dtype == np.float32
        sent = codec.decode(body, known, seed)
        np.testing.assert_allclose(sent + residual, x + before, rtol=1e-4, atol=1e-6 * np.abs(sent).max())


@pytest.mark.parametrize("name", FEEDBACK)
def test_with_error_feedback_everything_arrives_in_the_long_run(name: str) -> None:
    method = make_method(name, error_feedback=True)
    assert method.error_feedback
    assert not make_method(name).error_feedback
    x = updates("random", 5000)
    known = moved(((50, 100),))
    residual, arrived = np.zeros_like(x), np.zeros_like(x)
    for _ in range(400):
        body, residual = encode_with_feedback(method.codec, x, residual, known, 0, 0)
        arrived += method.codec.decode(body, known, 0)
    assert squared_error(arrived / 400, x) < 0.02


@pytest.mark.parametrize("name", METHODS)
def test_unknown_options_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"strategy\.nonsense=1: unknown key; strategy has: "):
        make_method(name, nonsense=1)


def test_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"strategy\.name=foo: no such method; there are drive, eden, fedavg, "):
        build_method("foo", {}, RunOptions(Noise()))
    with pytest.raises(ConfigError, match=r"strategy\.name=fedfoo: no such method.*; there are drive, eden, fedavg, "):
        build_method("fedfoo", {}, RunOptions(Noise()))


@pytest.mark.parametrize(("name", "code"), [("fedavg", 254), ("another", 1)])
def test_two_methods_of_one_name_or_code_are_refused(name: str, code: int) -> None:
    class Twin(find_methods()["fedavg"]):  # type: ignore[misc]
        pass

    Twin.name, Twin.code = name, code
    try:
        with pytest.raises(ValueError, match=r"(Twin.* and FedAvg|FedAvg and .*Twin) share a name or a code"):
            find_methods.__wrapped__()
    finally:
        del Twin
        gc.collect()  # classes are found as long as they live
    assert find_methods.__wrapped__() == find_methods()
    assert all(issubclass(recipe, MethodConfig) for recipe in find_methods().values())
