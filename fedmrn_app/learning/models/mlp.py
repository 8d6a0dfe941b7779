"""A plain multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedmrn_app.learning.models.narrow import Scaler, narrowed


def mlp(
    channels: int, size: tuple[int, int], classes: int, hidden: Sequence[int] = (1024, 1024), *, width: float = 1.0
) -> nn.Module:
    """Linear layers with ReLU between them, `hidden` their units; PyTorch's own initial weights, with biases."""
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = channels * size[0] * size[1]
    for units in (narrowed(full, width) for full in hidden):
        layers += [nn.Linear(inputs, units), Scaler(width), nn.ReLU()]
        inputs = units
    return nn.Sequential(*layers, nn.Linear(inputs, classes))
