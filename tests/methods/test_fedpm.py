"""FedPM: the posterior and its networks, and training that sees masked frozen weights only."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from fedmrn_app.config.build import build_run_method
from fedmrn_app.config.compose import load_config
from fedmrn_app.kernels.counter_rng import random_words, step_key, unit_floats
from fedmrn_app.layout import Layout
from fedmrn_app.methods.fedpm import FedPM, FrozenNetwork, Probabilities
from fedmrn_app.methods.method import Method, RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import Noise
from fedmrn_app.wire.body import CODERS
from tests.helpers import local_round, make_method, new_known, new_model

RUN = RunOptions(Noise(), seed=1)


def frozen_weights(method: Method, layout: Layout) -> Any:
    assert isinstance(method.server, Probabilities)
    return method.server.network.weights(layout)


def test_posterior_and_networks() -> None:
    server = FedPM().build(RUN).server
    mean = np.array([0, 0.25, 1], np.float32)
    assert np.array_equal(server.combine(mean, mean, 4), mean)  # Beta(1, 1): the mode is the mean mask
    informed = FedPM(prior=3.0).build(RUN).server.combine(mean, mean, 4)
    np.testing.assert_allclose(informed, [2 / 8, 3 / 8, 6 / 8])
    layout = new_model().layout
    frozen = FrozenNetwork(1).weights(layout)
    assert isinstance(server, Probabilities)
    assert np.array_equal(frozen, server.network.weights(layout))
    assert not np.array_equal(frozen, FrozenNetwork(2).weights(layout))
    assert np.abs(frozen[:288]) == pytest.approx(np.sqrt(2 / 9))  # 32 kernels of 1x3x3
    likely = np.linspace(0, 1, layout.count, dtype=np.float32)
    threshold = FedPM(evaluation="threshold").build(RUN).server
    assert np.array_equal(threshold.weights(likely, layout), frozen * (likely >= 0.5))
    p = np.full(frozen.size, 0.5, np.float32)
    assert np.array_equal(server.weights(p, layout), frozen / 2)
    sampled = server.sampled(p, layout, 3)
    assert sampled is not None
    assert set(np.unique(sampled != 0)) == {False, True}
    assert ((sampled == 0) | (sampled == frozen)).all()


def test_trains_with_masked_frozen_weights_only() -> None:
    method, model = FedPM().build(RUN), new_model()
    frozen = torch.from_numpy(FrozenNetwork(1).weights(model.layout))
    model.weights.fill_(0.5)
    seen: list[torch.Tensor] = []
    model.module.register_forward_pre_hook(lambda *_: seen.append(model.weights.clone()))
    known = new_known(method.server.first(model.state()[0], model.layout))
    trained = method.training.train(model, local_round(context=known))
    assert all(((weights == 0) | (weights == frozen)).all() for weights in seen)
    assert abs(float((seen[0] != 0).float().mean()) - 0.5) < 0.02
    assert ((trained.x >= 0) & (trained.x <= 1)).all()


def test_adam_on_the_scores_is_pytorchs() -> None:
    """Against scores that autograd differentiates: masks straight through, sigmoid, +-e / sqrt(fan_in)."""
    run, known = RUN, new_known(np.full(new_model().layout.count, 0.5, np.float32))
    method = FedPM(optimizer="adam", score_lr=0.01, network="e").build(run)
    model = new_model()
    model.weights.fill_(0.5)
    local = local_round(epochs=1, context=known)
    trained = method.training.train(model, local)

    model = new_model()
    frozen = torch.from_numpy(FrozenNetwork(1, np.e**2).weights(model.layout))
    assert float(frozen[:288].abs().max()) == pytest.approx(np.e / 3)  # 32 kernels of 1x3x3
    scores = torch.zeros(frozen.shape, requires_grad=True)
    adam = torch.optim.Adam([scores], 0.01)
    again = local_round(epochs=1, context=known)
    for step, (x, y) in enumerate(again.batches, 1):
        probabilities = torch.sigmoid(scores)
        drawn = unit_floats(random_words(step_key(again.private_seed, step), scores.numel())) < probabilities
        model.weights.copy_(frozen * drawn)
        model.zero_grads()
        torch.autograd.backward(again.batches.loss(model.module.train()(x), y))
        adam.zero_grad()
        torch.autograd.backward(probabilities, model.weight_grads * frozen)
        adam.step()
        model.dense_step(again.lr)
    np.testing.assert_allclose(trained.x, torch.sigmoid(scores).detach().numpy(), atol=1e-4)
    assert np.abs(trained.x - 0.5).max() > 0.005


class PublishedMask(torch.autograd.Function):
    """The published code's masks: 1 where a uniform number is below p; the gradient is p times that of the mask."""

    @staticmethod
    def forward(context: Any, p: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(p)
        return (uniform < p).float()

    @staticmethod
    def backward(context: Any, *grads: torch.Tensor) -> Any:
        return context.saved_tensors[0] * grads[0], None


PUBLISHED = build_run_method(load_config(("strategy=fedpm_code",)))


def test_two_rounds_of_the_published_code() -> None:
    """Against autograd and one optimizer of PyTorch, whose scores the server replaces between the rounds."""
    method, model, plain = PUBLISHED, new_model(), new_model()
    frozen = torch.from_numpy(frozen_weights(PUBLISHED, model.layout))
    assert float(frozen[:288].abs().max()) == pytest.approx(np.e / 3)  # 32 kernels of 1x3x3
    first = method.server.first(model.state()[0], model.layout)
    second = np.random.default_rng(5).choice(np.linspace(0.01, 0.99, 11, dtype=np.float32), first.size)
    scores = torch.zeros(frozen.shape, requires_grad=True)
    adam = torch.optim.Adam([scores], 0.1)
    kept = None
    for vector in (first, second):
        model.weights.copy_(torch.from_numpy(vector))
        local = dataclasses.replace(local_round(epochs=1, context=new_known(vector)), kept=kept)
        trained = method.training.train(model, local)
        kept = trained.kept
        p = torch.from_numpy(vector)
        scores.data.copy_(torch.log(p / (1 - p)))
        for step, (x, y) in enumerate(local.batches, 1):
            probabilities = torch.sigmoid(scores)
            uniform = unit_floats(random_words(step_key(local.private_seed, step), scores.numel()))
            masks = PublishedMask.apply(probabilities, uniform)
            plain.weights.copy_(frozen * masks.detach())
            plain.zero_grads()
            torch.autograd.backward(plain.module.train()(x).log_softmax(1).gather(1, y[:, None]).mean().neg())
            adam.zero_grad()
            torch.autograd.backward(masks, plain.weight_grads * frozen)
            adam.step()
            plain.dense_step(local.lr)
        expected = torch.sigmoid(scores).detach().numpy()
        close = np.abs(trained.x - expected) < 1e-3  # Adam makes whole steps of gradients of the size of rounding
        assert close.mean() > 0.999  # Adam's first steps have the sign of tiny gradients
        assert np.abs(trained.x - vector).max() > 0.05
    assert kept is not None
    moments = adam.state[scores]
    assert kept[-1] == moments["step"] == 2 * len(local.batches)
    np.testing.assert_allclose(kept[: first.size], moments["exp_avg"], atol=1e-5)


def test_first_scores_of_the_published_code_are_normal() -> None:
    model = new_model()
    first = PUBLISHED.server.first(model.state()[0], model.layout)
    scores = np.log(first / (1 - first))
    assert scores.mean() == pytest.approx(0, abs=4 / scores.size**0.5)
    assert scores.std() == pytest.approx(1, abs=4 / scores.size**0.5)


def test_published_mean_counts_masks_as_hundredths() -> None:
    """The mode of the Beta posterior from Beta(1, 1), to which a mask adds 0.01 or 0.99."""
    server, masks = PUBLISHED.server, np.array([[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1]], np.float32)
    counted = np.where(masks == 0, 0.01, 0.99)
    alpha, beta = 1 + counted.sum(0), 1 + (1 - counted).sum(0)
    mean = masks.mean(0, dtype=np.float32)
    np.testing.assert_allclose(server.combine(mean, mean, 3), (alpha - 1) / (alpha + beta - 2), rtol=1e-6)


@pytest.mark.parametrize("coder", CODERS)
def test_masks_match_their_probabilities(coder: str) -> None:
    """Over the server's seeds, from which the uniforms of the last draw follow."""
    codec, draws = make_method("fedpm", coder).codec, 2000
    p = np.linspace(0, 1, 60, dtype=np.float32)
    known = SharedContext(Layout(((6, 10),)), np.full_like(p, 0.5), np.full_like(p, 0.5))
    masks = [codec.decode(codec.encode(p, known, seed, 0), known, seed) for seed in range(draws)]
    assert set(np.unique(masks)) == {0.0, 1.0}
    standard_error = np.sqrt(p * (1 - p) / draws)
    assert (np.abs(np.mean(masks, 0) - p) <= 4 * standard_error + 1e-9).all()


def test_masks_near_the_servers_probabilities_take_few_bits() -> None:
    codec, random = make_method("fedpm").codec, np.random.default_rng(0)
    vector = random.random(40_000, np.float32)
    known = SharedContext(Layout(((200, 200),)), vector, vector)
    moved = (vector + random.normal(0, 0.02, vector.size).astype(np.float32)).clip(0, 1)
    assert 8 * len(codec.encode(moved, known, 5, 0)) / vector.size < 0.3  # the mask alone has 0.72 bit
