"""Training through flat views equals training in plain PyTorch."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedmrn_app.learning.batches import Batches
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.models.build import build_model
from fedmrn_app.learning.models.cnn import cnn4, cnn8
from fedmrn_app.learning.models.resnet import resnet18
from fedmrn_app.learning.sgd import PRECISIONS, Precision, local_sgd
from tests.helpers import IMAGES, image_task, images, new_model

COLOUR = image_task(3, 32)


@pytest.mark.parametrize(
    ("target", "weight_decay"), [(cnn4, 0.0), (cnn8, 0.1), pytest.param(resnet18, 0.0, marks=pytest.mark.slow)]
)
def test_training_equals_plain_pytorch(target: Callable[..., nn.Module], weight_decay: float) -> None:
    plain = build_model(target, {}, COLOUR, 1).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model = FlatModel(copy.deepcopy(plain))
    batches = Batches(COLOUR, images(12, COLOUR), batch_size=4, epochs=1, seed=3)
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


def test_callbacks_are_called_in_every_step() -> None:
    model, calls = new_model(), list[tuple[str, int]]()
    batches = Batches(IMAGES, images(), batch_size=16, epochs=2, seed=0)
    before = model.weights.clone()
    local_sgd(
        model,
        batches,
        0.1,
        before_step=lambda step: calls.append(("before", step)),
        update=lambda step: calls.append(("update", step)),
    )
    assert calls == [(what, step) for step in range(1, len(batches) + 1) for what in ("before", "update")]
    assert torch.equal(model.weights, before)  # `update` replaces the step


@pytest.mark.parametrize("precision", PRECISIONS)
def test_either_precision_learns(precision: Precision) -> None:
    model = new_model()
    samples = images(16)
    losses = [
        local_sgd(model, Batches(IMAGES, samples, batch_size=16, epochs=5, seed=0), 0.05, precision=precision)
        for _ in range(4)
    ]
    assert losses[-1] < losses[0]
    assert model.weights.dtype == torch.float32
