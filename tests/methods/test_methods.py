"""The contract of methods: every method is held to its own claims; a new one is found and tested without an edit."""

import dataclasses
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
from fedmrn_app.layout import Layout
from fedmrn_app.methods import build_method, by_name, find_methods
from fedmrn_app.methods.fedavg import FedAvg
from fedmrn_app.methods.method import Method, MethodConfig, RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import Noise
from fedmrn_app.wire.body import CODED, CODERS, FACTORED, LANED, PLAIN, Body
from tests.helpers import (
    CASES,
    CLIENT,
    COMPRESSORS,
    METHODS,
    SHAPES,
    Client,
    bits_a_weight,
    make_method,
    moved,
    squared_error,
    updates,
)
from tests.plain.upload import Upload

COUNT = Layout(SHAPES).count
NAMES = {case: case.split("-")[0] for case in CASES}
FEEDBACK = [case for case in CASES if "error_feedback" in find_methods()[NAMES[case]].__dataclass_fields__]
MAX_BITS = {"drive": 1.001, "signsgd": 1.001, "terngrad": 1.6, "topk": 1.18, "fedscalar": 0.001, "fedavg": 32.0,
            "eden": 1.001, "eden-bits-2": 1.916, "eden-bits-3": 2.83, "eden-bits-4": 3.77,
            "quantized": 0.204}  # fmt: skip
WRONG = [
    ("drive", {"scale": "best"}), ("eden", {"bits": 5}), ("fedmrn", {"masking": "always"}),
    ("quantized", {"bits": 0.0}), ("quantized", {"error": 2.0}), ("terngrad", {"clip": -1.0}),
    ("topk", {"ratio": 0.0}), ("fedsparsify", {"ratio": 2.0}), ("fedsparsify", {"prunings": 0}),
    ("fedscalar", {"direction": "up"}), ("fedscalar", {"divisor": "clients"}), ("fedpm", {"score_lr": 0.0}),
    ("fedpm", {"network": "x"}), ("fedpm", {"prior": 0.5}), ("fedpm", {"min_probability": 0.5}),
    ("fedpm", {"moments": "kept"}), ("fedpm", {"gradient": "times_p"}), ("fedpm", {"mask_margin": 0.5}),
    ("fedpm", {"first_scores": "x"}), ("fedpm", {"evaluation": "x"}),
    ("fedpm", {"score_lr": 1000.0, "optimizer": "adam"}),
    ("submodel", {"masking": "some"}), ("submodel", {"granularity": "layer"}), ("submodel", {"aggregate": "sum"}),
    ("submodel", {"capacities": []}), ("submodel", {"radius": 0.0}), ("submodel", {"windows": "nested"}),
    ("submodel", {"draws": "x"}), ("submodel", {"assignment": "x"}), ("submodel", {"starts": 0}),
    ("submodel", {"output_lr": 0.1, "granularity": "channel"}),
    ("submodel", {"output_lr": 0.1, "windows": "fedrolex"}),
    ("submodel", {"output_lr": 0.1, "windows": "fedrolex_backward"}),
    ("submodel", {"label_rows": "own", "granularity": "channel"}),
    ("submodel", {"label_rows": "own", "aggregate": "coverage"}), *((name, {"nonsense": 1}) for name in METHODS),
]  # fmt: skip


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
        return self.method.codec.decode(body, self.client.context, self.client.seed)


@cache
def trained(name: str) -> Trained:
    method = make_method(name)
    client = Client(method)
    return Trained(method, client, client.train()[0])


def round_trip(method: Method, x: Any, context: SharedContext, seed: int = 7) -> Any:
    return method.codec.decode(method.codec.encode(x, context, seed, 0), context, seed)


@pytest.mark.parametrize("name", METHODS)
def test_has_a_file_of_its_own_in_conf(name: str) -> None:
    folder = find_conf() / "strategy"
    files = sorted(path.stem for path in Path(folder).glob("*.yaml"))
    assert files == sorted([*METHODS, "fedpm_code"])  # this one sets further options of `fedpm`
    built = build_run_method(load_config((f"strategy={name}",)))
    assert (built.name, built.code) == (name, find_methods()[name].code)
    assert 0 < built.code < 256  # a byte of the payload


@pytest.mark.parametrize("name", CASES)
def test_trained_update_round_trip_and_size(name: str) -> None:
    """The decoded vector keeps the limits, and adding it piece by piece equals adding it as a vector."""
    case = trained(name)
    payload, decoded = case.upload.payload, case.upload.vector
    limits = case.method.codec.limits(case.client.layout)
    assert len(case.body) <= limits.max_bytes
    assert decoded.dtype == np.float32
    assert decoded.shape == (case.client.layout.count,)
    assert np.isfinite(decoded).all()
    assert decoded.any()
    assert limits.max_norm is None or np.linalg.norm(decoded) <= 1.1 * limits.max_norm
    assert payload.loss > 0
    assert payload.train_seconds > 0
    assert payload.compress_seconds >= 0
    before = np.random.default_rng(3).standard_normal(decoded.size).astype(np.float32)
    total = before.copy()
    read = case.method.codec.read(case.body, case.client.context, case.client.seed)
    read.add_to(total, np.float32(40))
    assert read.square_norm(total.size) == pytest.approx(np.square(decoded, dtype=np.float64).sum(), rel=1e-5)
    assert total.dtype == np.float32
    np.testing.assert_allclose(total, before + np.float32(40) * decoded, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_global_vector_survives_the_way_down(name: str) -> None:
    case = trained(name)
    server, layout = case.method.server, case.client.layout
    vector = case.client.round.state.vector
    held = case.method.selection.submodel_mask(layout, CLIENT, 1, case.client.seed)
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
def test_held_weights_follow_from_round_and_seed(name: str) -> None:
    selection, layout = make_method(name).selection, Layout(SHAPES)
    for client in range(4):
        assert selection.width(client, 1) in selection.widths
        one, again = (make_method(name).selection.submodel_mask(layout, client, 2, 5) for _ in range(2))
        if one is None or again is None:
            assert one is again
            continue
        assert one.dtype == np.bool_
        assert one.shape == (COUNT,)
        assert one.any()
        assert np.array_equal(one, again)


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize("name", COMPRESSORS)
def test_any_update_fits_the_limits(name: str) -> None:
    method, context = make_method(name), moved(SHAPES)
    for kind in ("random", "sparse", "constant", "zero"):
        x = updates(kind, COUNT)
        assert len(method.codec.encode(x, context, 7, 0)) <= method.codec.limits(Layout(SHAPES)).max_bytes
        decoded = round_trip(method, x, context)
        assert np.array_equal(x, updates(kind, COUNT))  # left as it was
        assert decoded.dtype == np.float32
        assert decoded.shape == (COUNT,)
        assert np.isfinite(decoded).all()
        assert kind != "zero" or not decoded.any()
        assert name not in MAX_BITS or kind == "zero" or bits_a_weight(method.codec, kind) <= MAX_BITS[name]


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_model_that_is_held_in_part(name: str) -> None:
    """Weights that are not held are zero in the global vector and in the update."""
    whole = moved(SHAPES)
    held = np.random.default_rng(6).random(COUNT) < 0.5
    x = updates("random", COUNT) * held
    context = SharedContext(whole.layout, np.where(held, whole.vector, 0), whole.initial, held)
    decoded = round_trip(make_method(name), x, context)
    assert np.isfinite(decoded).all()
    assert np.dot(decoded, x) > 0


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


def check_hostile_body(name: str, data: st.DataObject) -> None:
    """Random bytes, and bytes of a real body changed, cut off or added to."""
    method = make_method(name)
    context = moved(SHAPES if data.draw(st.booleans()) else ((3, 5),))
    held = method.selection.submodel_mask(context.layout, CLIENT, 1, 1)
    context = SharedContext(context.layout, context.vector, context.initial, held)
    body = Body(data.draw(st.binary(max_size=120)), data.draw(st.sampled_from([PLAIN, CODED, LANED, 255])))
    if data.draw(st.booleans()):
        if name in COMPRESSORS:
            whole = method.codec.encode(updates("sparse", context.count), context, 1, 0)
        else:
            whole, context = trained(name).body, trained(name).client.context
        real = bytearray(whole.data)
        for _ in range(data.draw(st.integers(0, 3))):
            real[data.draw(st.integers(0, len(real) - 1))] = data.draw(st.integers(0, 255))
        changed = bytes(real[: data.draw(st.integers(0, len(real)))]) + data.draw(st.binary(max_size=5))
        body = Body(changed, data.draw(st.sampled_from([whole.form, PLAIN, CODED, LANED])))
    total = np.ones(context.count, np.float32)
    try:
        update = method.codec.decode(body, context, 1)
    except PayloadError:
        with pytest.raises(PayloadError):
            method.codec.read(body, context, 1).add_to(total, np.float32(2))
        assert (total == 1).all()  # as it was
        return
    assert update.dtype == np.float32
    assert update.shape == (context.count,)
    assert np.isfinite(update).all()


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_hostile_bodies_are_refused_or_finite(name: str, data: st.DataObject) -> None:
    check_hostile_body(name, data)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_many_hostile_bodies_are_refused_or_finite(name: str, data: st.DataObject) -> None:
    check_hostile_body(name, data)


@pytest.mark.parametrize("name", CASES)
def test_bodies_of_another_length_or_form_are_refused(name: str) -> None:
    case = trained(name)
    data = bytes(case.body.data)
    changed = [Body(part, case.body.form) for part in (data[:-1], data + b"\0", b"")]
    for body in (*changed, Body(data, 2), Body(data, 255)):
        with pytest.raises(PayloadError) as refusal:
            case.decode(body)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", CASES)
def test_coded_and_packed_bodies_decode_to_the_same(name: str) -> None:
    auto, packed = (Client(make_method(name, coder)).train()[0].payload.body for coder in CODERS)
    assert packed.form == (FACTORED if auto.form == FACTORED else PLAIN)
    assert len(auto) <= len(packed)
    assert np.array_equal(trained(name).decode(auto), trained(name).decode(packed))


@pytest.mark.parametrize("name", COMPRESSORS)
def test_error_feedback_keeps_what_an_upload_leaves_out(name: str) -> None:
    """The upload plus the next residual is the update plus the last residual, around any codec of updates."""
    plain, context = make_method(name), moved(SHAPES)
    method = dataclasses.replace(plain, error_feedback=True)
    x = updates("random", COUNT)
    residual = None
    for seed in range(3):
        before = np.zeros(COUNT, np.float32) if residual is None else residual
        body, residual = method.encode(x, residual, context, seed, seed)
        assert residual is not None
        assert residual.dtype == np.float32
        sent = method.codec.decode(body, context, seed)
        np.testing.assert_allclose(sent + residual, x + before, rtol=1e-4, atol=1e-6 * np.abs(sent).max())
    assert plain.encode(x, None, context, 2, 2)[1] is None


@pytest.mark.slow
@pytest.mark.parametrize("name", FEEDBACK)
def test_with_error_feedback_everything_arrives_in_the_long_run(name: str) -> None:
    method, context = make_method(name, error_feedback=True), moved(((50, 100),))
    assert method.error_feedback
    assert not make_method(name).error_feedback
    x = updates("random", 5000)
    residual, arrived = None, np.zeros_like(x)
    for _ in range(400):
        body, residual = method.encode(x, residual, context, 0, 0)
        arrived += method.codec.decode(body, context, 0)
    assert squared_error(arrived / 400, x) < 0.02


@pytest.mark.parametrize(("name", "options"), WRONG, ids=str)
def test_wrong_options_are_refused_by_their_key(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refusal:
        make_method(name, **options)
    assert str(refusal.value).startswith(f"strategy.{next(iter(options))}=")


def test_unknown_names_are_refused() -> None:
    for name, hint in (("foo", False), ("fedavgg", True)):
        with pytest.raises(ConfigError) as refusal:
            build_method(name, {}, RunOptions(Noise()))
        assert (refusal.value.code, refusal.value.key, refusal.value.value) == ("unknown-method", "strategy.name", name)
        assert ("did you mean" in str(refusal.value)) == hint


def test_options_of_the_run_that_a_method_cannot_have_are_refused() -> None:
    for name, options, run, key in (
        ("fedmrn", {"masking": "dm"}, RunOptions(Noise(), bits=0.5), "uplink.bits"),
        ("fedpm", {}, RunOptions(Noise(), downlink="float16"), "downlink.dtype"),
    ):
        with pytest.raises(ConfigError) as refusal:
            build_method(name, options, run)
        assert (refusal.value.code, refusal.value.key) == ("conflict", key)


def test_two_methods_of_one_name_or_code_are_refused() -> None:
    class Unnamed(FedAvg):
        pass

    for name, code in (("fedavg", 254), ("another", 1)):
        twin = type("Twin", (FedAvg,), {"name": name, "code": code})
        with pytest.raises(ValueError, match="Twin"):
            by_name([FedAvg, twin])
    assert by_name([FedAvg, Unnamed]) == {"fedavg": FedAvg}
    assert all(issubclass(config, MethodConfig) for config in find_methods().values())


def test_methods_that_work_on_the_arrays_of_any_app() -> None:
    work = {name for name in METHODS if make_method(name).works_on_arrays}
    assert work >= {"drive", "eden", "fedavg", "fedmrn", "fedmrns", "quantized", "signsgd", "terngrad", "topk"}
    assert not work & {"fedpm", "fedscalar", "fedsparsify", "submodel"}
    assert {name for name in work if name not in COMPRESSORS} == {"fedmrn", "fedmrns"}


@pytest.mark.parametrize(
    "own",
    [
        {"whole_model": True},
        {"shared_seed": True},
        {"training": make_method("fedpm").training},
        {"server": make_method("fedpm").server},
        {"selection": make_method("submodel").selection},
    ],
    ids=lambda own: next(iter(own)),
)
def test_each_part_of_its_own_keeps_a_method_from_other_apps(own: dict[str, Any]) -> None:
    method = make_method("eden")
    assert method.works_on_arrays
    assert not dataclasses.replace(method, **own).works_on_arrays
