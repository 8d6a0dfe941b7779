"""ResNet18 of torchvision with a stem for small images, and a ResNet18 that can be narrowed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedmrn_app.errors import needs_extra
from fedmrn_app.learning.models.narrow import BatchNorm, Scaler, batch_norm, narrowed


def resnet18(channels: int, size: tuple[int, int], classes: int) -> nn.Module:
    """Build ResNet18; for images below 64 pixels the first convolution is 3x3 of stride 1, without max-pool.

    Raises:
        ConfigError: torchvision is not installed.
    """
    with needs_extra("vision", "model.name", "resnet18"):
        from torchvision.models import resnet18 as torchvision_resnet18

    module: nn.Module = torchvision_resnet18(num_classes=classes)
    if min(size) < 64:
        module.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        module.maxpool = nn.Identity()
    elif channels != 3:
        module.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    return module


class PreActivationBlock(nn.Module):
    """Two 3x3 convolutions, each after batch norm and ReLU, with a shortcut (He et al. 2016b)."""

    def __init__(self, channels: int, kernels: int, stride: int, norm: BatchNorm, width: float) -> None:
        super().__init__()
        self.norm1 = batch_norm(channels, norm)
        self.conv1 = nn.Conv2d(channels, kernels, 3, stride, padding=1, bias=False)
        self.norm2 = batch_norm(kernels, norm)
        self.conv2 = nn.Conv2d(kernels, kernels, 3, padding=1, bias=False)
        same = stride == 1 and channels == kernels
        self.shortcut = None if same else nn.Conv2d(channels, kernels, 1, stride, bias=False)
        self.scale = Scaler(width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, channels, height, width) to (n, kernels, height / stride, width / stride)."""
        active = torch.relu(self.norm1(x))
        carried = x if self.shortcut is None else self.scale(self.shortcut(active))
        out: Tensor = self.scale(self.conv1(active))
        out = self.scale(self.conv2(torch.relu(self.norm2(out))))
        out += carried
        return out


def preact_resnet18(
    channels: int, size: tuple[int, int], classes: int, *, norm: BatchNorm = "static", width: float = 1.0
) -> nn.Module:
    """Build a pre-activation ResNet18 for small images, with a scaler after each convolution (Deng et al., 5.1)."""
    kernels = narrowed(64, width)
    layers: list[nn.Module] = [nn.Conv2d(channels, kernels, 3, padding=1, bias=False), Scaler(width)]
    for full, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for step in (stride, 1):
            layers.append(PreActivationBlock(kernels, narrowed(full, width), step, norm, width))
            kernels = narrowed(full, width)
    layers += [batch_norm(kernels, norm), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(kernels, classes))
