"""Every method there is, held to its own claims; a new one is found by itself."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmrn_app.config import CONF
from fedmrn_app.errors import ConfigError, PayloadError
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.models import build_model
from fedmrn_app.methods import ClientUpdate, LocalTask, Noise, build_method, find_methods
from tests.test_fedmrn import SEED, SHAPE, new_model, task

METHODS = sorted(find_methods())


def trained(name: str) -> tuple[FlatModel, ClientUpdate]:
    model = new_model()
    return model, build_method(name, {}, Noise()).train(model, task())


@pytest.mark.parametrize("name", METHODS)
def test_has_a_file_of_its_own_in_conf(name: str) -> None:
    assert (CONF / "strategy" / f"{name}.yaml").is_file()
    assert sorted(path.stem for path in Path(CONF / "strategy").glob("*.yaml")) == METHODS


@pytest.mark.parametrize("name", METHODS)
def test_update_round_trip_and_size(name: str) -> None:
    method = build_method(name, {}, Noise())
    model, update = trained(name)
    d = model.weights.numel()
    assert 8 * len(update.body) <= method.bits_per_weight * d + 7
    decoded = method.decode(update.body, SEED, d)
    assert decoded.dtype == np.float32
    assert decoded.shape == (d,)
    assert np.isfinite(decoded).all()
    assert decoded.any()
    assert update.loss > 0
    assert update.train_seconds > update.compress_seconds >= 0


@pytest.mark.parametrize("name", METHODS)
def test_training_is_deterministic_and_leaves_the_global_generator_alone(name: str) -> None:
    state = torch.get_rng_state()
    (first, update), (second, again) = trained(name), trained(name)
    assert update.body == again.body
    assert torch.equal(first.dense, second.dense)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", METHODS)
def test_update_lowers_the_loss(name: str) -> None:
    """Eight rounds of one client on one batch of noise: only an update that goes the right way learns that by heart."""
    method = build_method(name, {}, Noise())
    model = FlatModel(build_model("digits", SHAPE, 3))
    weights, dense = model.state()
    losses = []
    for seed in range(8):
        model.load(weights, dense)
        local = task(epochs=4)
        update = method.train(model, LocalTask(local.batches, local.lr, local.precision, seed, local.generator))
        losses.append(update.loss)
        weights = weights + method.decode(update.body, seed, weights.size)
        dense = model.state()[1]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=50)
@given(body=st.binary(max_size=64), count=st.integers(1, 600))
def test_hostile_bodies_are_refused_or_finite(name: str, body: bytes, count: int) -> None:
    method = build_method(name, {}, Noise())
    try:
        update = method.decode(body, 1, count)
    except PayloadError:
        return
    assert update.shape == (count,)
    assert np.isfinite(update).all()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("change", ["shorter", "longer", "empty"])
def test_body_of_another_length_is_refused(name: str, change: str) -> None:
    model, update = trained(name)
    body = {"shorter": update.body[:-1], "longer": update.body + b"\0", "empty": b""}[change]
    with pytest.raises(PayloadError, match="body has"):
        build_method(name, {}, Noise()).decode(body, SEED, model.weights.numel())


def test_fedavg_refuses_values_that_are_not_finite() -> None:
    method = build_method("fedavg", {}, Noise())
    with pytest.raises(PayloadError, match="not finite"):
        method.decode(np.array([1, np.nan], "<f4").tobytes(), 0, 2)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"strategy\.name=fedfoo: no such method; there are fedavg, "):
        build_method("fedfoo", {}, Noise())
    with pytest.raises(ConfigError, match=r"strategy\.masking=psm: fedavg has no such option"):
        build_method("fedavg", {"masking": "psm"}, Noise())
