"""Batches of images for local training: an order for each epoch, normalisation, and augmentation of whole batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

Augmentation = Literal["none", "crop_flip"]
AUGMENTATIONS: tuple[Augmentation, ...] = get_args(Augmentation)

CROP_PADDING = 4  # Li et al. 2024, section 5.1: random crop of the image's own size after padding by 4


@dataclass(frozen=True)
class Images:
    """Labelled images of one party.

    Attributes:
        pixels: uint8 (n, channels, height, width).
        labels: int64 (n,).
        mean: the channels' means that normalise pixels scaled to [0, 1], for training and test alike.
        std: the channels' standard deviations, likewise.
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, rows: NDArray[np.int64]) -> Images:
        """Copy the given rows, in their order."""
        return Images(self.pixels[rows], self.labels[rows], self.mean, self.std)


class Batches:
    """The batches of `epochs` passes over one client's images, in an order and augmentation fixed by `seed`.

    With `steps` there are so many batches instead, in as many passes as they take.

    Iterating yields (x, y): x float32 (b, channels, height, width), channels-last and normalised, y int64 (b,), on
    `device`. `len` is the number of local steps S. A last batch of one sample joins the batch before it, since
    batch-norm cannot train on one.
    """

    def __init__(
        self,
        images: Images,
        *,
        batch_size: int,
        epochs: int,
        seed: int,
        steps: int | None = None,
        augmentation: Augmentation = "none",
        device: torch.device | str = "cpu",
    ) -> None:
        self._images = images
        self._seed = seed
        self._augmentation = augmentation
        self._device = torch.device(device)
        starts = list(range(0, len(images), batch_size))
        if len(starts) > 1 and len(images) - starts[-1] == 1:
            starts.pop()
        self._bounds = list(zip(starts, [*starts[1:], len(images)], strict=True))
        self._steps = epochs * len(self._bounds) if steps is None else steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return islice(self._endless(), self._steps)

    def _endless(self) -> Iterator[tuple[Tensor, Tensor]]:
        pixels = torch.from_numpy(self._images.pixels).to(self._device)
        labels = torch.from_numpy(self._images.labels).to(self._device)
        generator = torch.Generator().manual_seed(self._seed)
        while True:
            order = torch.randperm(len(labels), generator=generator).to(self._device)
            for start, end in self._bounds:
                rows = order[start:end]
                x = normalise(pixels[rows], self._images.mean, self._images.std)
                if self._augmentation == "crop_flip":
                    x = _crop_flip(x, generator)
                yield x.contiguous(memory_format=torch.channels_last), labels[rows]


def normalise(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return (pixels / 255 - mean) / std, channel by channel, as float32 of the same shape (n, channels, h, w)."""
    scale = torch.tensor([1 / (255 * s) for s in std], device=pixels.device).view(1, -1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=pixels.device).view(1, -1, 1, 1)
    return torch.addcmul(shift, pixels.float(), scale)


def _crop_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Crop each image at its own random place after zero padding and mirror it with probability 1/2."""
    n, _, height, width = x.shape
    offsets = torch.randint(0, 2 * CROP_PADDING + 1, (2, n, 1), generator=generator)
    flips = torch.randint(0, 2, (n, 1), generator=generator, dtype=torch.bool)
    rows = offsets[0] + torch.arange(height)  # (n, height)
    columns = torch.arange(width).expand(n, width)
    columns = offsets[1] + torch.where(flips, width - 1 - columns, columns)  # (n, width)
    padded = functional.pad(x, (CROP_PADDING,) * 4).permute(0, 2, 3, 1)
    image = torch.arange(n).view(n, 1, 1)
    cropped = padded[image.to(x.device), rows[:, :, None].to(x.device), columns[:, None, :].to(x.device)]
    return cropped.permute(0, 3, 1, 2)  # channels-last in memory
