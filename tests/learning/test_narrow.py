"""Narrower models: how many channels they have, and what makes up for those that are missing."""

import pytest
import torch

from fedmrn_app.learning.models.build import build_model
from fedmrn_app.learning.models.narrow import Scaler, batch_norm, narrowed
from fedmrn_app.learning.models.resnet import preact_resnet18
from tests.helpers import image_task


def test_scaler_makes_up_for_missing_channels_in_training_only() -> None:
    x = torch.tensor([1.0, -2.0])
    scaler = Scaler(0.25)
    assert torch.equal(scaler.train()(x), 4 * x)
    assert torch.equal(scaler.eval()(x), x)
    module = build_model(preact_resnet18, {}, image_task(3, 32), 0, width=0.25)
    convolutions = sum(isinstance(m, torch.nn.Conv2d) for m in module.modules())
    passes = [0]
    for part in module.modules():
        if isinstance(part, Scaler):
            part.register_forward_hook(lambda *_: passes.__setitem__(0, passes[0] + 1))
    module(torch.zeros(2, 3, 32, 32))
    assert passes[0] == convolutions == 20
    assert not [name for name, _ in module.named_buffers()]


def test_a_channel_is_left_at_least() -> None:
    assert [narrowed(64, width) for width in (1.0, 0.5, 0.3, 1 / 64, 0.001)] == [64, 32, 20, 1, 1]


def test_static_batch_norm_keeps_no_statistics() -> None:
    assert not batch_norm(3, "static").track_running_stats
    assert batch_norm(3, "tracked").track_running_stats
    with pytest.raises(ValueError, match="norm=some is not one of tracked, static"):
        batch_norm(3, "some")  # type: ignore[arg-type]
