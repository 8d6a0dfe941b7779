"""The layer-wise way to train masks, as the method's authors do it: what the benchmark measures our local step against.

Each layer holds its global weights, its noise and its update, and draws its own mask in every forward pass by separate
elementwise operations, which autograd follows; the optimiser steps over a list of parameters. Default memory layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class MaskedLayer(nn.Module):
    """A convolution or linear layer whose update is learned as a binary mask over noise (Li et al. 2024, Eq. 10)."""

    def __init__(self, layer: nn.Conv2d | nn.Linear, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        self.layer = [layer]  # in a list: its own weight is no parameter of this module
        self.weight: Tensor
        self.noise: Tensor
        self.register_buffer("weight", layer.weight.detach().clone())
        noise = (torch.rand(layer.weight.shape, generator=generator) * 2 - 1 + 2.0**-24) * alpha  # never zero
        self.register_buffer("noise", noise)
        self.update = nn.Parameter(torch.zeros_like(self.weight))
        self.bias = layer.bias
        self.progress = 0.0

    def forward(self, x: Tensor) -> Tensor:
        u, n = self.update, self.noise
        with torch.no_grad():
            mask = torch.bernoulli(torch.clamp(u / n, 0, 1))
            clipped = torch.minimum(torch.maximum(u, torch.clamp(n, max=0)), torch.clamp(n, min=0))
            chosen = torch.bernoulli(torch.full_like(u, self.progress))
            masked = chosen * (n * mask) + (1 - chosen) * clipped
        weight = self.weight + u + (masked - u).detach()  # the gradient goes straight through
        layer = self.layer[0]
        if isinstance(layer, nn.Conv2d):
            return functional.conv2d(x, weight, self.bias, layer.stride, layer.padding)
        return functional.linear(x, weight, self.bias)


def paper_cnn(channels: int, size: tuple[int, int], classes: int, blocks: Sequence[Sequence[int]]) -> nn.Module:
    """CNN4 or CNN8 in the paper's order of layers; `blocks` holds the channels of the convolutions before each pool."""
    layers: list[nn.Module] = []
    for block in blocks:
        for width in block:
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    pixels = (size[0] >> len(blocks)) * (size[1] >> len(blocks))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * pixels, classes, bias=False))


def with_masked_layers(module: nn.Module, alpha: float, seed: int) -> nn.Module:
    """Replace all convolutions and linear layers of `module`, in place, by masked ones."""
    generator = torch.Generator().manual_seed(seed)
    for name, child in module.named_children():
        if isinstance(child, nn.Conv2d | nn.Linear):
            setattr(module, name, MaskedLayer(child, alpha, generator))
        else:
            with_masked_layers(child, alpha, seed + 1)
    return module


def set_progress(module: nn.Module, progress: float) -> None:
    """Set the progress of the local training."""
    for layer in module.modules():
        if isinstance(layer, MaskedLayer):
            layer.progress = progress
