"""Randomized response: how often bits flip, the corrected mean, and the content of a reply."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.config.privacy_checks import privacy_lines
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.federation.server import close_round, open_round
from fedmrn_app.kernels.secure_random import draw, normals
from fedmrn_app.layout import Layout
from fedmrn_app.methods import build_method
from fedmrn_app.methods.method import Method, RunOptions
from fedmrn_app.methods.randomized_response import RandomizedResponse
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import Noise
from fedmrn_app.wire.body import CODED, CODERS
from tests.helpers import moved
from tests.plain.upload import read_upload

D = 400
KNOWN = moved(((10, 20), (20, 10)))
MASKS = ("fedmrn", "fedmrns", "fedpm")


def method_of(name: str, flips: RandomizedResponse | None, noise: Noise | None = None) -> Method:
    return build_method(name, {}, RunOptions(noise or Noise(), randomized_response=flips))


def known_of(name: str) -> SharedContext:
    if name != "fedpm":
        return KNOWN
    return SharedContext(KNOWN.layout, np.full(D, 0.5, np.float32), np.full(D, 0.5, np.float32))


def trained(name: str) -> np.ndarray:
    random = np.random.default_rng(1)
    x = random.random(D) if name == "fedpm" else random.normal(0, 0.005, D)
    return x.astype(np.float32)


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("probability", [0.001, 0.1, 0.45])
def test_bits_flip_with_their_probability(probability: float, seed: int | None) -> None:
    count = 1_000_001
    flipped = draw(probability, count, seed)
    assert flipped.size == count
    assert abs(flipped.sum() - probability * count) < 4 * math.sqrt(count * probability * (1 - probability))
    assert draw(1.0, 100, seed).all()
    assert np.array_equal(draw(probability, count, seed), flipped) == (seed is not None)
    response = RandomizedResponse(probability)
    assert RandomizedResponse.of_epsilon(response.epsilon, True).probability == pytest.approx(probability)
    assert response.gain == pytest.approx(1 / (1 - 2 * probability))


def test_normal_numbers_are_normal() -> None:
    x = normals(1_000_000, 3)
    assert abs(x.mean()) < 4e-3
    assert x.std() == pytest.approx(1, abs=3e-3)
    assert (np.abs(x) > 3).mean() == pytest.approx(0.0027, rel=0.1)
    assert not np.array_equal(normals(10, None), normals(10, None))


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    "noise", ["uniform", *(pytest.param(n, marks=pytest.mark.slow) for n in ("gaussian", "bernoulli"))]
)
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(
    "flips", [pytest.param(RandomizedResponse(0.1), marks=pytest.mark.slow), RandomizedResponse(0.3, secret=False)]
)
def test_flipped_masks_have_the_mean_of_the_masks(name: str, flips: RandomizedResponse, noise: str) -> None:
    """In 2,000 draws each element is within 4 standard errors, up to chance; without the correction it would not be."""
    kind = Noise(noise)  # type: ignore[arg-type]
    exact, flipped = (method_of(name, f, kind).codec for f in (None, flips))
    known, x = known_of(name), trained(name)
    expected = exact.decode(exact.encode(x, known, 7, 0), known, 7).astype(np.float64)
    draws = np.array([flipped.decode(flipped.encode(x, known, 7, s), known, 7) for s in range(2000)])
    errors = (draws.mean(0) - expected) / (draws.std(0) / math.sqrt(2000))
    assert np.abs(errors).max() < 4.8  # the largest of 400: beyond 4.8 with probability 0.0006
    assert (np.abs(errors) < 4).mean() > 0.99
    assert abs(errors.mean()) < 4 / math.sqrt(D)
    uncorrected = np.array([exact.decode(flipped.encode(x, known, 7, s), known, 7) for s in range(200)])
    errors = (uncorrected.mean(0) - expected) / np.maximum(uncorrected.std(0) / math.sqrt(200), 1e-9)
    assert np.median(np.abs(errors)) > 3


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("coder", CODERS)
def test_coded_and_packed_flipped_masks_decode_to_the_same(name: str, coder: str) -> None:
    layout = Layout(((300, 500),))
    vector = np.full(layout.count, 0.5, np.float32)
    known = SharedContext(layout, vector, vector)
    x = np.random.default_rng(2).laplace(0, 0.0005, layout.count).astype(np.float32)
    if name == "fedpm":
        x = np.clip(0.5 + 10 * x, 0, 1)
    sizes = []
    for probability in (1e-9, 0.01, 0.1, 0.3):
        options = RunOptions(Noise(), coder=coder, randomized_response=RandomizedResponse(probability, secret=False))  # type: ignore[arg-type]
        codec = build_method(name, {}, options).codec
        body = codec.encode(x, known, 7, 1)
        packed = replace(options, coder="packed")
        plain = build_method(name, {}, packed).codec
        again = plain.decode(plain.encode(x, known, 7, 1), known, 7)
        assert np.array_equal(codec.decode(body, known, 7), again)
        sizes.append(8 * len(body) / layout.count)
        assert (body.form == CODED) == (coder == "auto")
    print(f"{name}, {coder}: {', '.join(f'{bits:.3f}' for bits in sizes)} bits per weight")
    assert sizes == sorted(sizes)
    least = -(0.3 * math.log2(0.3) + 0.7 * math.log2(0.7))
    assert coder == "packed" or least < sizes[-1] < 1


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("name", MASKS)
def test_a_reply_has_nothing_but_the_mask(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMRN_CACHE", str(tmp_path / "cache"))
    words = ("model=mlp", "model.hidden=[16]", "uplink.bits=null", "clients=3", "clients_per_round=3", "local.epochs=1")
    config = load_config((*words, f"strategy={name}", "privacy.local_epsilon=2"))
    worker = build_worker(config)
    model, protocol = worker.model()
    assert protocol.layout.count == model.parameter_count == 64 * 16 + 16 + 16 * 10 + 10
    assert protocol.dense_sizes == []
    assert f"{2.0 * 1210:,.0f} for the whole mask of 1,210 bits" in privacy_lines(config, None, protocol)[0]
    state, samples = protocol.begin(), {client: worker.sample_count(client) for client in range(3)}
    opened = open_round(protocol, state, 1, samples, 3)
    replies = {client: worker.train(opened.order(client)).payload for client in samples}
    again = worker.train(opened.order(0)).payload
    assert again[46:] != replies[0][46:]  # other flips of the same mask: no seed determines them
    upload = read_upload(replies[0], protocol, opened.header(0, opened.context(0)), opened.context(0), opened.dense)
    assert upload.payload.loss == 0
    assert upload.dense.size == 0
    after, report = close_round(opened, dict(replies))
    assert report.failures == {}
    assert all(math.isnan(reply.loss) for reply in report.used)
    assert not np.array_equal(after.vector, state.vector)
    assert name != "fedpm" or (after.vector.min() >= 0 and after.vector.max() <= 1)


def test_runs_with_seeded_flips_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMRN_CACHE", str(tmp_path / "cache"))
    words = ("model=mlp", "model.hidden=[]", "uplink.bits=null", "clients=3", "clients_per_round=3", "local.steps=2")
    worker = build_worker(load_config((*words, "privacy.flip=0.2", "privacy.noise_seed=run")))
    protocol: RunProtocol = worker.model()[1]
    samples = {client: worker.sample_count(client) for client in range(3)}
    opened = open_round(protocol, protocol.begin(), 1, samples, 3)
    assert worker.train(opened.order(1)).payload[46:] == worker.train(opened.order(1)).payload[46:]
