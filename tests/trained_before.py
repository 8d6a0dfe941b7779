"""A model that was trained before, as `model._target_`."""

from safetensors.torch import load_file
from torch import nn

from fedmrn_app.learning.models.cnn import digits


def net(channels: int, size: tuple[int, int], classes: int, *, path: str) -> nn.Module:
    """The digits' network with the weights of a safetensors file."""
    module = digits(channels, size, classes)
    module.load_state_dict(load_file(path))
    return module
