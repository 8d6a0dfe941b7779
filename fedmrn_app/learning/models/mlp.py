"""A multilayer perceptron for images and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from fedmrn_app.learning.models.narrow import Scaler, narrowed
from fedmrn_app.validation import Count


def mlp(
    shape: tuple[int, ...], classes: int, *, hidden: Sequence[Count] = (1024, 1024), width: float = 1.0
) -> nn.Module:
    """Build linear layers with biases and ReLU between them, with PyTorch's initial weights.

    Args:
        shape: shape of one sample, which is flattened.
        classes: number of outputs.
        hidden: units of each hidden layer; an empty list is a linear model.
        width: share of the hidden units that the model has.
    """
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = math.prod(shape)
    for units in (narrowed(full, width) for full in hidden):
        layers += [nn.Linear(inputs, units), Scaler(width), nn.ReLU()]
        inputs = units
    return nn.Sequential(*layers, nn.Linear(inputs, classes))
