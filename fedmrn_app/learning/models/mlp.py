"""A plain multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def mlp(channels: int, size: tuple[int, int], classes: int, hidden: Sequence[int] = (1024, 1024)) -> nn.Module:
    """Linear layers with ReLU between them, `hidden` their widths; PyTorch's own initial weights, with biases."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = channels * size[0] * size[1]
    for units in hidden:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, classes))
