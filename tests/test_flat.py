"""Flat views hold for any module, and training through them is training."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedmrn_app.learning.batches import Batches, Images
from fedmrn_app.learning.evaluate import evaluate
from fedmrn_app.learning.flat import FlatModel, state_sha256
from fedmrn_app.learning.models import MODELS, ImageShape, build_model
from fedmrn_app.learning.sgd import local_sgd

SHAPE = ImageShape(3, 32, 32, 10)


class Tied(nn.Module):
    """Embedding and output layer share one matrix; attention and an LSTM have matrices of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.output = nn.Linear(8, 11)
        self.output.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        x = x + self.attention(x, x, x)[0]
        logits: torch.Tensor = self.output(self.norm(self.lstm(x)[0]))[:, -1]
        return logits


def images(count: int = 40, shape: ImageShape = SHAPE) -> Images:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (count, shape.channels, shape.height, shape.width), dtype=np.uint8)
    ones = (0.5,) * shape.channels
    return Images(pixels, random.integers(0, shape.classes, count), ones, ones)


def test_resnet18_parts() -> None:
    module = build_model("resnet18", SHAPE, 0)
    model = FlatModel(module)
    masked = sum(p.numel() for n, p in module.named_parameters() if p.dim() >= 2)
    norms = sum(p.numel() for p in module.parameters() if p.dim() < 2)
    statistics = sum(b.numel() for b in module.buffers() if b.is_floating_point())
    assert model.weights.shape == model.weight_grads.shape == (masked,)
    assert model.dense.shape == (norms + statistics,)
    assert model.dense_grads.shape == (norms,)
    assert model.parameter_count == masked + norms


def test_tied_attention_and_lstm() -> None:
    module = Tied()
    model = FlatModel(module)
    matrices = 11 * 8 + (24 * 8 + 8 * 8) + 2 * 32 * 8  # the tied matrix once
    assert model.weights.numel() == matrices
    assert module.output.weight is module.embedding.weight
    model.weights.zero_()
    assert not any(p.any() for p in module.parameters() if p.dim() >= 2)
    functional.cross_entropy(module(torch.arange(11).view(1, 11)), torch.tensor([3])).backward()  # type: ignore[no-untyped-call]
    assert model.dense_grads.any()


def test_groups_and_biases() -> None:
    module = nn.Sequential(nn.Conv2d(4, 8, 3, groups=4), nn.Sequential(nn.Flatten(), nn.LazyLinear(3)))
    module(torch.zeros(1, 4, 5, 5))
    model = FlatModel(module)
    assert model.weights.numel() == 8 * 9 + 3 * 72
    assert model.dense.numel() == model.dense_grads.numel() == 8 + 3


def test_embedding_and_frozen_weights_are_not_masked() -> None:
    module = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    module[1].requires_grad_(False)
    model = FlatModel(module)
    assert model.weights.numel() == 8
    assert model.dense.numel() == 20 + 2


@pytest.mark.parametrize(("name", "weight_decay"), [("cnn4", 0.0), ("cnn8", 0.1), ("resnet18", 0.0)])
def test_training_equals_plain_pytorch(name: str, weight_decay: float) -> None:
    plain = build_model(name, SHAPE, 1).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model = FlatModel(copy.deepcopy(plain))
    batches = Batches(images(12), batch_size=4, epochs=1, seed=3)
    loss = local_sgd(model, batches, 0.05, weight_decay=weight_decay)
    optimiser = torch.optim.SGD(plain.parameters(), 0.05, weight_decay=weight_decay)
    plain.train()
    losses = []
    for x, y in batches:
        optimiser.zero_grad()
        step_loss = functional.cross_entropy(plain(x), y)
        step_loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(step_loss.item())
    assert loss == pytest.approx(np.mean(losses), rel=1e-4)
    for (key, mine), theirs in zip(model.module.state_dict().items(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4, msg=key)


def test_load_and_state_round_trip() -> None:
    model = FlatModel(build_model("cnn4", SHAPE, 0))
    weights, dense = model.state()
    local_sgd(model, Batches(images(), batch_size=16, epochs=1, seed=0), 0.1)
    trained = model.state()
    assert state_sha256(*trained) != state_sha256(weights, dense)
    assert int(model.module.state_dict()["1.num_batches_tracked"]) == 3
    model.load(weights, dense)
    assert state_sha256(*model.state()) == state_sha256(weights, dense)
    assert int(model.module.state_dict()["1.num_batches_tracked"]) == 0
    with pytest.raises(ValueError, match="weights has shape"):
        model.load(weights[:-1], dense)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_initial_weights_depend_on_the_seed_alone(name: str) -> None:
    before = torch.get_rng_state()
    first, again, other = (FlatModel(build_model(name, SHAPE, seed)).state()[0] for seed in (5, 5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_cnn_weights_start_at_one_hundredth() -> None:
    weights = FlatModel(build_model("cnn4", ImageShape(1, 28, 28, 10), 0)).weights
    assert weights.numel() == 389_920
    assert float(weights.std()) == pytest.approx(0.01, rel=0.01)


def test_evaluation_of_static_batch_norm_takes_any_number_of_images() -> None:
    model = FlatModel(build_model("preact_resnet18", ImageShape(1, 8, 8, 10), 0, width=1 / 16))
    few, many = images(2, ImageShape(1, 8, 8, 10)), images(501, ImageShape(1, 8, 8, 10))
    for some in (few, many):
        accuracy, loss = evaluate(model, some)
        assert 0 <= accuracy <= 1
        assert 0 < loss < 10
