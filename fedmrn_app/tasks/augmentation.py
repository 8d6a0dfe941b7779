"""Normalization and augmentation of batches of images."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def normalize(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return (pixels / 255 - mean) / std for each channel, as float32 of the same shape (n, channels, h, w)."""
    scale = torch.tensor([1 / (255 * s) for s in std], device=pixels.device).view(1, -1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=pixels.device).view(1, -1, 1, 1)
    return torch.addcmul(shift, pixels.float(), scale)


def crop_flip(
    x: Tensor, padding: tuple[int, int], generator: torch.Generator, *maps: Tensor, void: int = 0
) -> list[Tensor]:
    """Crop each image at a random place after padding, and mirror it with probability 1/2, together with its maps.

    Args:
        x: images (b, channels, h, w), padded with 0.
        padding: pixels at each end of the height and of the width; (0, 0) only mirrors.
        generator: draws on the CPU.
        maps: label maps (b, h, w), padded with `void`.
        void: the label of the padding.

    Returns:
        The images, channels-last in memory, and the maps, all in their shapes.
    """
    count, _, height, width = x.shape
    down, right = padding
    rows = torch.randint(0, 2 * down + 1, (count, 1), generator=generator) + torch.arange(height)
    shift = torch.randint(0, 2 * right + 1, (count, 1), generator=generator)
    flips = torch.randint(0, 2, (count, 1), generator=generator, dtype=torch.bool)
    columns = torch.arange(width).expand(count, width)
    columns = shift + torch.where(flips, width - 1 - columns, columns)  # (count, width)
    image = torch.arange(count, device=x.device).view(-1, 1, 1)
    place = (image, rows[:, :, None].to(x.device), columns[:, None, :].to(x.device))
    sides = (right, right, down, down)
    cropped = functional.pad(x, sides).permute(0, 2, 3, 1)[place].permute(0, 3, 1, 2)
    return [cropped, *(functional.pad(y, sides, value=void)[place] for y in maps)]
