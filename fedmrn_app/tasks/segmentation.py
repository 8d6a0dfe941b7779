"""Semantic segmentation: a class for each pixel of an image (Li et al. 2024, appendix, Table 3).

Images come with label maps of their own size, from parquet files (a local folder, or the hub) or from a folder in
PascalVOC's layout. Both are brought to one size when they are decoded. Pixels of the void label count for nothing,
in the loss and in the metrics.

The published code of this task differs from what is here. It trains the dense weights beside the masks and sends them
too, so its FedMRN is no method of one bit per weight; here only the masks are trained. It also starts from a pretrained
backbone, gives the heads ten times the step size, shares the images out by class, takes the classes that a batch lacks
for one background in the loss, and crops at random scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from fedmrn_app.data.cache import cached_arrays, file_stamp
from fedmrn_app.data.hub import local_folder
from fedmrn_app.data.label_maps import LAYOUTS, Pairs, parquet_pairs, voc_files, voc_pairs
from fedmrn_app.errors import ConfigError, DataError
from fedmrn_app.tasks.classification import normalise
from fedmrn_app.tasks.task import Report, Samples, Split, Task
from fedmrn_app.validation import Count, Range

PADDING = 8  # `crop_flip` pads by an eighth of each side: the share that 4 pixels are of CIFAR's 32


@dataclass(frozen=True, kw_only=True)
class Segmentation(Task):
    """Classes of pixels; the keys of its data sets.

    Stored and given to `batch`: x uint8 (n, 3, height, width), y uint8 (n, height, width) with labels from 0 to
    classes - 1 and `void`. There are no labels by which rows could be shared out unevenly.
    """

    kind: ClassVar[str] = "segmentation"
    metrics: ClassVar[tuple[str, ...]] = ("mean_iou", "accuracy")

    task: Literal["segmentation"] = "segmentation"
    hub: str | None = None
    subset: str | None = None
    path: str | None = None  # a local folder; it takes the place of the hub
    image_column: str = "image"  # of parquet files
    annotation_column: str = "annotation"  # likewise, of the label maps
    classes: Annotated[int, Range(least=2, most=255)]
    first_class: Annotated[int, Range(least=0, most=254)] = 0  # its label; labels below it are void too
    void: Annotated[int, Range(least=0, most=255)] = 255  # the label that counts for nothing
    height: Count
    width: Count
    mean: Annotated[tuple[float, ...], Range(least=3, most=3)]  # of pixels in [0, 1], channel by channel
    std: Annotated[tuple[Annotated[float, Range(above=0)], ...], Range(least=3, most=3)]
    augmentation: Literal["none", "flip", "crop_flip"] = "crop_flip"
    model: str = "bisenet_v2"

    def __post_init__(self) -> None:
        if self.void < self.classes or self.first_class <= self.void < self.first_class + self.classes:
            last = self.first_class + self.classes - 1
            raise ConfigError(
                f"dataset.void={self.void}: must be at least {self.classes} (dataset.classes) and no class's own label "
                f"({self.first_class} to {last}); 255 will do for most"
            )

    def load(self, split: Split, report: Report | None = None) -> Samples:
        """Return one split, mapped read-only; it is decoded on first use.

        Raises:
            DataError: no such folder or column, an image without a label map or with one of another size, or a label
                that is neither a class nor void.
        """
        folder = None if self.path is None else local_folder(self.path, LAYOUTS)
        files = None if folder is None else voc_files(folder, split)
        stamp: object = (self.hub, self.subset)
        if files is not None:
            stamp = [file_stamp(file) for pair in files for file in pair]
        elif folder is not None:
            stamp = file_stamp(folder)

        def make() -> dict[str, NDArray[np.uint8]]:
            if files is not None:
                return self._decode(voc_pairs(files))
            columns = (self.image_column, self.annotation_column)
            return self._decode(parquet_pairs(self.name, self.hub, self.subset, folder, split, columns))

        form = (self.image_column, self.annotation_column, self.classes, self.first_class, self.void)
        source = (stamp, split, self.height, self.width, form)
        arrays = cached_arrays(f"{self.name}-{split}", source, make, report)
        return Samples(arrays["x"], arrays["y"])

    def local(self, path: str) -> Segmentation:
        """The same task on the images of a device, a folder in one of the two layouts; only `train` is read."""
        return replace(self, path=str(local_folder(path, LAYOUTS, "data-path")))

    def model_name(self) -> str:
        """The model that `model=default` stands for."""
        return self.model

    def inputs(self) -> Mapping[str, Any]:
        """What a model is built for."""
        return {"channels": 3, "classes": self.classes, "size": (self.height, self.width)}

    def example(self, count: int) -> Tensor:
        """Grey images, float32 (count, 3, height, width)."""
        return torch.zeros(count, 3, self.height, self.width).contiguous(memory_format=torch.channels_last)

    def batch(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Normalise images and change them together with their label maps.

        Returns:
            float32 (b, 3, height, width), channels-last in memory, and int64 (b, height, width).
        """
        x = normalise(x, self.mean, self.std)
        if generator is not None and self.augmentation != "none":
            share = PADDING if self.augmentation == "crop_flip" else 0
            x, y = crop_flip(x, y, self.void, share, generator)
        return x.contiguous(memory_format=torch.channels_last), y.long()

    def check_outputs(self, outputs: Any, count: int) -> str | None:
        """Why a model's outputs are not (count, classes, height, width), or None."""
        wanted = (count, self.classes, self.height, self.width)
        given = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        return None if given == wanted else f"gives {given} for {count} images, not {wanted}"

    def loss(self, outputs: Tensor | tuple[Tensor, ...], y: Tensor) -> Tensor:
        """Cross-entropy, the mean over all pixels that are not void (0 without any), summed over all heads' outputs."""
        heads = (outputs,) if isinstance(outputs, Tensor) else outputs
        pixels = (y != self.void).sum().clamp(min=1)
        losses = [functional.cross_entropy(o, y, ignore_index=self.void, reduction="sum") / pixels for o in heads]
        return torch.stack(losses).sum()

    def tally(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The confusion matrix, int64 (classes, classes): pixels by their class and by the class predicted."""
        counted = y != self.void
        cells = y[counted] * self.classes + outputs.argmax(1)[counted]
        return torch.bincount(cells, minlength=self.classes**2).view(self.classes, self.classes)

    def read(self, tally: NDArray[Any]) -> dict[str, float]:
        """Mean intersection over union, and the share of pixels that are right.

        The mean is over the classes that occur, in the label maps or among the predictions.
        """
        right = np.diagonal(tally).astype(float)
        union = tally.sum(0) + tally.sum(1) - right
        occurs = union > 0
        iou = right[occurs] / union[occurs]
        return {
            "mean_iou": float(iou.sum()) / max(len(iou), 1),
            "accuracy": float(right.sum()) / max(int(tally.sum()), 1),
        }

    def _decode(self, pairs: Pairs) -> dict[str, NDArray[np.uint8]]:
        """Read all pairs into x and y as they are stored."""
        if not pairs.names:
            raise DataError(f"dataset.path={self.path}: has no images")
        x = np.empty((len(pairs.names), 3, self.height, self.width), np.uint8)
        y = np.empty((len(pairs.names), self.height, self.width), np.uint8)
        size = (self.width, self.height)
        for number, name in enumerate(pairs.names):
            try:
                image, labels = pairs.read(number)
                image = image.convert("RGB")
            except (OSError, ValueError) as error:
                raise DataError(f"{name}: cannot be decoded: {str(error).splitlines()[0]}; replace the file") from error
            if labels.shape != (image.height, image.width):
                raise DataError(
                    f"{name}: the label map has shape {labels.shape}, its image ({image.height}, {image.width}); "
                    "make them the same"
                )
            x[number] = np.asarray(image.resize(size, Image.Resampling.BILINEAR)).transpose(2, 0, 1)
            known = Image.fromarray(self._known(labels.astype(np.int64), name))
            y[number] = np.asarray(known.resize(size, Image.Resampling.NEAREST))
        return {"x": x, "y": y}

    def _known(self, labels: NDArray[np.int64], name: str) -> NDArray[np.uint8]:
        """Classes counted from 0, and void."""
        last = self.first_class + self.classes - 1
        void = (labels == self.void) | ((labels >= 0) & (labels < self.first_class))
        wrong = labels[~void & ((labels < 0) | (labels > last))]
        if wrong.size:
            raise DataError(
                f"dataset.classes={self.classes}: {name} has the label {wrong[0]}, neither a class "
                f"({self.first_class} to {last}) nor dataset.void={self.void}"
            )
        return np.where(void, self.void, labels - self.first_class).astype(np.uint8)


def crop_flip(x: Tensor, y: Tensor, void: int, share: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Crop each image at its own random place after padding, and mirror it with probability 1/2, its label map alike.

    Args:
        x: (b, channels, h, w), padded with 0.
        y: (b, h, w), padded with `void`.
        void: the label of the padding.
        share: what part of each side is padded on both its ends: an eighth is 8; 0 pads nothing.
        generator: on the CPU.

    Returns:
        Both in their shapes, x channels-last in memory.
    """
    count, _, height, width = x.shape
    down, right = (height // share, width // share) if share else (0, 0)
    rows = torch.randint(0, 2 * down + 1, (count, 1), generator=generator) + torch.arange(height)
    shift = torch.randint(0, 2 * right + 1, (count, 1), generator=generator)
    flips = torch.randint(0, 2, (count, 1), generator=generator, dtype=torch.bool)
    columns = torch.arange(width).expand(count, width)
    columns = shift + torch.where(flips, width - 1 - columns, columns)  # (count, width)
    image = torch.arange(count, device=x.device).view(-1, 1, 1)
    place = (image, rows[:, :, None].to(x.device), columns[:, None, :].to(x.device))
    padding = (right, right, down, down)
    x = functional.pad(x, padding).permute(0, 2, 3, 1)[place].permute(0, 3, 1, 2)
    return x, functional.pad(y, padding, value=void)[place]
