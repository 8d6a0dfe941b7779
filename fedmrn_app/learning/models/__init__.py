"""The models by name, built from a seed without touching the global random state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from fedmrn_app.errors import ConfigError
from fedmrn_app.learning.models.cnn import cnn4, cnn8, digits
from fedmrn_app.learning.models.mlp import mlp
from fedmrn_app.learning.models.resnet import preact_resnet18, resnet18


@dataclass(frozen=True)
class ImageShape:
    """What a model is built for: image size in pixels and the number of classes."""

    channels: int
    height: int
    width: int
    classes: int


MODELS: dict[str, Callable[..., nn.Module]] = {
    "cnn4": cnn4,
    "cnn8": cnn8,
    "digits": digits,
    "mlp": mlp,
    "preact_resnet18": preact_resnet18,
    "resnet18": resnet18,
}

NARROWABLE = ("cnn4", "cnn8", "digits", "mlp", "preact_resnet18")


def build_model(name: str, shape: ImageShape, seed: int, width: float = 1.0, **options: object) -> nn.Module:
    """Build a model with initial weights that depend on the seed alone, and see that it takes such images.

    Args:
        name: of the model.
        shape: of the images.
        seed: of the initial weights.
        width: the share of its channels that the model gets, 0 < width <= 1.
        options: the model's own.

    Raises:
        ConfigError: the model cannot be narrowed, does not know an option, or cannot process images of this shape.
    """
    if width != 1:
        if name not in NARROWABLE:
            raise ConfigError(f"model.name={name}: cannot be narrowed; take one of {', '.join(NARROWABLE)}")
        options["width"] = width
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module = MODELS[name](shape.channels, (shape.height, shape.width), shape.classes, **options)
            with torch.no_grad():
                module.eval()(torch.zeros(2, shape.channels, shape.height, shape.width))
        except (TypeError, ValueError, RuntimeError) as error:
            size = f"{shape.channels}x{shape.height}x{shape.width}"
            reason = str(error).splitlines()[0]
            raise ConfigError(f"model.name={name}: does not fit images of {size} ({reason})") from error
    return module
