"""Flat views share their memory with the parameters of any module."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedmrn_app.learning.batches import Batches
from fedmrn_app.learning.flat import FlatModel, state_sha256, to_tensor
from fedmrn_app.learning.models.build import build_model
from fedmrn_app.learning.models.cnn import cnn4
from fedmrn_app.learning.models.resnet import resnet18
from fedmrn_app.learning.sgd import local_sgd
from tests.helpers import image_task, images

COLOUR = image_task(3, 32)


class Tied(nn.Module):
    """A module whose embedding and output layer share one matrix, with attention and an LSTM."""

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


def test_resnet18_parts() -> None:
    module = build_model(resnet18, {}, COLOUR, 0)
    model = FlatModel(module)
    masked = sum(p.numel() for n, p in module.named_parameters() if p.dim() >= 2)
    norms = sum(p.numel() for p in module.parameters() if p.dim() < 2)
    statistics = sum(b.numel() for b in module.buffers() if b.is_floating_point())
    assert model.weights.shape == model.weight_grads.shape == (masked,)
    assert model.layout.count == masked
    assert model.dense.shape == (norms + statistics,)
    assert model.dense_grads.shape == (norms,)
    assert model.parameter_count == masked + norms
    assert sum(model.dense_sizes) == norms + statistics


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


def test_weights_are_unfrozen_matrices_of_layers() -> None:
    grouped = nn.Sequential(nn.Conv2d(4, 8, 3, groups=4), nn.Sequential(nn.Flatten(), nn.LazyLinear(3)))
    grouped(torch.zeros(1, 4, 5, 5))
    frozen = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    frozen[1].requires_grad_(False)
    for module, weights, dense in ((grouped, 8 * 9 + 3 * 72, 8 + 3), (frozen, 8, 20 + 2)):
        model = FlatModel(module)
        assert (model.weights.numel(), model.dense.numel(), model.dense_grads.numel()) == (weights, dense, dense)


def test_all_parameters_of_a_whole_model_are_weights() -> None:
    model = FlatModel(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)), whole=True)
    assert model.weights.numel() == model.parameter_count == 20 + 16 + 4 + 8
    assert (model.dense.numel(), model.dense_grads.numel()) == (8, 0)  # the running statistics


def test_other_types_than_float32_are_refused() -> None:
    with pytest.raises(ValueError, match="float64"):
        FlatModel(nn.Linear(2, 2).double())


def test_load_and_state_round_trip() -> None:
    model = FlatModel(build_model(cnn4, {}, COLOUR, 0))
    weights, dense = model.state()
    local_sgd(model, Batches(COLOUR, images(40, COLOUR), batch_size=16, epochs=1, seed=0), 0.1)
    trained = model.state()
    assert state_sha256(*trained) != state_sha256(weights, dense)
    assert int(model.module.state_dict()["1.num_batches_tracked"]) == 3
    model.load(weights, dense)
    assert state_sha256(*model.state()) == state_sha256(weights, dense)
    assert int(model.module.state_dict()["1.num_batches_tracked"]) == 0
    with pytest.raises(ValueError, match="weights"):
        model.load(weights[:-1], dense)
    with pytest.raises(ValueError, match="dense"):
        model.load(weights, dense[:-1])


def test_gradients_have_the_order_of_the_weights() -> None:
    """Each gradient is the memory that autograd filled: flat, without a copy."""
    model = FlatModel(build_model(cnn4, {}, image_task(1, 28), 0))
    model.zero_grads()
    x = torch.rand(4, 1, 28, 28).contiguous(memory_format=torch.channels_last)
    torch.nn.functional.cross_entropy(model.module(x), torch.arange(4)).backward()  # type: ignore[no-untyped-call]
    parameters = [p for p in model.module.parameters() if p.dim() >= 2]
    for (start, grad), parameter in zip(model.grad_parts(), parameters, strict=True):
        assert parameter.grad is not None
        assert grad.data_ptr() == parameter.grad.data_ptr()
        view = model.weights[start : start + grad.numel()]
        assert view.data_ptr() == parameter.data_ptr()
        parameter.grad.copy_(parameter.detach())
        assert torch.equal(grad, view)


def test_the_digest_changes_with_any_bit() -> None:
    weights, dense = np.arange(3, dtype=np.float32), np.arange(2, dtype=np.float32)
    assert state_sha256(weights, dense) == state_sha256(weights.copy(), dense.copy())
    assert state_sha256(weights, dense) != state_sha256(np.nextafter(weights, np.float32(9)), dense)


def test_only_read_only_vectors_are_copied() -> None:
    vector = np.zeros(3, np.float32)
    assert to_tensor(vector).data_ptr() == vector.ctypes.data
    vector.flags.writeable = False
    assert to_tensor(vector).data_ptr() != vector.ctypes.data
