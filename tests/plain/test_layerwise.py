"""The benchmark's baseline computes what the method is: the same masks in distribution, the same gradients."""

import copy

import torch
from torch import nn
from torch.nn import functional

from tests.plain.layerwise import MaskedLayer, paper_cnn, set_progress, with_masked_layers


def test_masked_layers_follow_the_paper() -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(100, 100))
    module = with_masked_layers(copy.deepcopy(plain), 1e-2, 0)
    layer = module[1]  # type: ignore[index]
    assert isinstance(layer, MaskedLayer)
    weights: list[torch.Tensor] = []
    x = torch.eye(100)
    with torch.no_grad():
        layer.update.copy_(0.3 * layer.noise)
    for progress in (0.0, 0.5, 1.0):
        set_progress(module, progress)
        weights.append((module(x) - layer.bias).T - layer.weight)  # type: ignore[operator]
    torch.testing.assert_close(weights[0], 0.3 * layer.noise, atol=1e-6, rtol=0)
    masked = (weights[1] - 0.3 * layer.noise).abs() > 1e-5
    assert abs(float(masked.float().mean()) - 0.5) < 0.03
    kept = (weights[2] - layer.noise).abs() < 1e-6
    assert abs(float(kept.float().mean()) - 0.3) < 0.03
    assert (kept | (weights[2].abs() < 1e-6)).float().mean() > 0.999


def test_gradients_go_straight_through() -> None:
    module = with_masked_layers(paper_cnn(1, (8, 8), 10, ((4,), (8,))), 1e-2, 0)
    x, y = torch.randn(6, 1, 8, 8), torch.arange(6)
    functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
    layers = [m for m in module.modules() if isinstance(m, MaskedLayer)]
    assert len(layers) == 3
    assert all(layer.update.grad is not None and layer.update.grad.any() for layer in layers)
    assert not [name for name, _ in module.named_parameters() if name.endswith("weight") and "." not in name]
