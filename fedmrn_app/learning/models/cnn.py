"""The convolutional networks of Li et al. 2024, section 5.1.1, and a small one for the 8x8 digits.

Each convolution is followed by batch norm and ReLU, every one (CNN4) or second one (CNN8) by a 2x2 max-pool, and all by
one linear layer. As in the authors' code, but not in the paper, there are no biases, and weights start at N(0, 0.01^2).
With `norm=static` they can be narrowed.
"""

from __future__ import annotations

from torch import nn

from fedmrn_app.learning.models.narrow import BatchNorm, Scaler, batch_norm, narrowed

INITIAL_STD = 0.01


def cnn4(
    channels: int, size: tuple[int, int], classes: int, *, norm: BatchNorm = "tracked", width: float = 1.0
) -> nn.Module:
    """Build four 3x3 convolutions of 32-64-128-256 channels."""
    return _cnn(((32,), (64,), (128,), (256,)), channels, size, classes, norm=norm, width=width)


def cnn8(
    channels: int, size: tuple[int, int], classes: int, *, norm: BatchNorm = "tracked", width: float = 1.0
) -> nn.Module:
    """Build eight 3x3 convolutions of 32-32-64-64-128-128-256-256 channels."""
    return _cnn(((32, 32), (64, 64), (128, 128), (256, 256)), channels, size, classes, norm=norm, width=width)


def digits(
    channels: int, size: tuple[int, int], classes: int, *, norm: BatchNorm = "tracked", width: float = 1.0
) -> nn.Module:
    """Build two 3x3 convolutions of 32-64 channels."""
    return _cnn(((32,), (64,)), channels, size, classes, norm=norm, width=width)


def _cnn(
    blocks: tuple[tuple[int, ...], ...],
    channels: int,
    size: tuple[int, int],
    classes: int,
    *,
    norm: BatchNorm,
    width: float,
) -> nn.Module:
    """Build the network; `blocks` holds the channels of the convolutions before each pool."""
    layers: list[nn.Module] = []
    for block in blocks:
        for full in block:
            kernels = narrowed(full, width)
            layers.append(nn.Conv2d(channels, kernels, 3, padding=1, bias=False))
            if norm == "static":
                layers.append(Scaler(width))
            layers += [batch_norm(kernels, norm), nn.ReLU()]
            channels = kernels
        layers.insert(-1, nn.MaxPool2d(2))  # before ReLU it is the same function, on a quarter of the elements
    rows, columns = (side >> len(blocks) for side in size)
    if rows * columns == 0:
        raise ValueError(f"{len(blocks)} pools leave nothing of {size[0]}x{size[1]} pixels")
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * rows * columns, classes, bias=False))
    for parameter in module.parameters():
        if parameter.dim() >= 2:
            nn.init.normal_(parameter, std=INITIAL_STD)
    return module
