"""torchvision's ResNet18 with the stem that small images need."""

from __future__ import annotations

from torch import nn
from torchvision.models import resnet18 as torchvision_resnet18


def resnet18(channels: int, size: tuple[int, int], classes: int) -> nn.Module:
    """ResNet18; images below 64 pixels get a 3x3 first convolution of stride 1 and no max-pool."""
    module: nn.Module = torchvision_resnet18(num_classes=classes)
    if min(size) < 64:
        module.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        module.maxpool = nn.Identity()
    elif channels != 3:
        module.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    return module
