"""Semantic segmentation: a class for each pixel of an image (Li et al. 2024, appendix, Table 3).

Images and label maps are brought to one size when they are decoded. Pixels of the void label do not count, neither in
the loss nor in the metrics.

The published code of this task differs. It trains the dense weights beside the masks and sends them too, so that its
FedMRN is not a method of one bit per weight; here only the masks are trained. It also starts from a pretrained
backbone, gives the heads ten times the step size, shares the images out by class, merges the classes that a batch lacks
with the background in the loss, and crops at random scales.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedmrn_app.data.cache import Arrays, cached_arrays
from fedmrn_app.data.hub import read_split
from fedmrn_app.data.images import open_image, require_pillow
from fedmrn_app.data.label_maps import LAYOUTS, Pair, table_pairs, voc_files
from fedmrn_app.data.map_checks import MapReader, refuse_few_classes
from fedmrn_app.data.place import Place, first_line
from fedmrn_app.data.rows import Entry
from fedmrn_app.data.summary import DataSummary
from fedmrn_app.errors import ConfigError, DataError
from fedmrn_app.tasks.augmentation import crop_flip, normalize
from fedmrn_app.tasks.task import Report, Samples, Split, Task, convert, shape_of
from fedmrn_app.validation import Count, Range

READING = 1  # is raised where label maps are read in another way, so that the cache holds none of before
PADDING_SHARE = 8  # `crop_flip` pads by an eighth of each side: the share that 4 pixels are of CIFAR's 32


@dataclass(frozen=True, kw_only=True)
class Segmentation(Task):
    """A class for each pixel; a data set has no labels by which Dirichlet partitions could share out rows.

    Samples store x uint8 (n, 3, height, width) and y uint8 (n, height, width), which holds 0 to classes - 1 and `void`.
    """

    kind: ClassVar[str] = "segmentation"
    metrics: ClassVar[tuple[str, ...]] = ("mean_iou", "accuracy")

    task: Literal["segmentation"] = "segmentation"
    hub: str | None = None
    subset: str | None = None
    path: str | None = None  # a local folder, which is read instead of the hub
    image_column: str = "image"  # of parquet files
    annotation_column: str = "annotation"  # of parquet files: the label maps
    classes: Annotated[int, Range(least=2, most=255)]
    first_class: Annotated[int, Range(least=0, most=254)] = 0  # its label; labels below it are void too
    void: Annotated[int, Range(least=0, most=255)] = 255  # the label that does not count
    height: Count
    width: Count
    mean: Annotated[tuple[float, ...], Range(least=3, most=3)]  # of pixels in [0, 1], for each channel
    std: Annotated[tuple[Annotated[float, Range(above=0)], ...], Range(least=3, most=3)]
    augmentation: Literal["none", "flip", "crop_flip"] = "crop_flip"
    model: str = "bisenet_v2"

    def __post_init__(self) -> None:
        last = self.first_class + self.classes - 1
        if self.void < self.classes or self.first_class <= self.void <= last:
            raise ConfigError(
                f"dataset.void={self.void}: must be at least {self.classes} (dataset.classes) and not the label of a "
                f"class ({self.first_class} to {last}); 255 fits most data sets",
                code="range",
                key="dataset.void",
                value=self.void,
            )

    def load(self, split: Split, report: Report | None = None) -> Samples:
        """Return one split, mapped read-only; it is decoded on first use.

        Raises:
            DataError: a folder or column is missing, an image has no label map or one of another size, a label is
                neither a class nor void, or no class occurs, or a single one in the training maps.
        """
        arrays = self._arrays(split, report)
        return Samples(arrays["x"], arrays["y"])

    def describe(self, report: Report | None = None) -> DataSummary:
        """Return the rows of each split, and which share of classes and pixels counts in the training maps."""
        pixels = self._arrays("train", report)["pixels"]
        void = 100 * pixels[self.void] / pixels.sum()
        note = f"{self.classes} classes, of which {self._occurring(pixels)} occur; {void:.2g} % of pixels void"
        summary = super().describe(report)
        return replace(summary, entries=[Entry(self.annotation_column, "label map", "label", note)])

    def _occurring(self, pixels: NDArray[np.int64]) -> int:
        """Return how many classes occur, given the pixels (256,) of each label."""
        return int(np.count_nonzero(pixels[: self.classes]))

    def _arrays(self, split: Split, report: Report | None) -> Arrays:
        """Return x and y of a split, and the `pixels` int64 (256,) that have each label in y."""
        place = Place("dataset", self.name) if self.path is None else Place(self.path_key, self.path)
        folder = None if self.path is None else place.find(LAYOUTS)
        files = None if folder is None else voc_files(folder, split, place)
        stamp: object = (self.hub, self.subset)
        if files is not None:
            stamp = [place.stamp(file) for pair in files for file in pair]
        elif folder is not None:
            stamp = place.stamp(folder)
        columns = (self.image_column, self.annotation_column)

        def make() -> Arrays:
            if files is not None:
                pairs = [(str(labels), image, labels) for image, labels in files]
                return self._decode(pairs, len(files), place, split)
            table = read_split(place, self.hub, self.subset, split, LAYOUTS)
            return self._decode(table_pairs(table, columns, place, split), table.count_rows(), place, split)

        source = (READING, stamp, split, self.height, self.width, (*columns, self.classes, self.first_class, self.void))
        return cached_arrays(f"{self.name}-{split}", source, make, report, private=place.on_disk)

    def local(self, path: str) -> Segmentation:
        """Return the same task on the images of a device, a folder in one of the two layouts; only `train` is read."""
        Place(DeviceScenes.path_key, path).find(LAYOUTS)
        return convert(self, DeviceScenes, path=path)

    def model_name(self) -> str:
        """Return the configured model."""
        return self.model

    def inputs(self) -> Mapping[str, Any]:
        """Return `channels`, `classes` and `size`, which is (height, width)."""
        return {"channels": 3, "classes": self.classes, "size": (self.height, self.width)}

    def example(self, count: int) -> Tensor:
        """Return grey images, float32 (count, 3, height, width)."""
        return torch.zeros(count, 3, self.height, self.width)

    def batch(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Normalize images, and augment them together with their label maps.

        Returns:
            float32 (b, 3, height, width), and int64 (b, height, width).
        """
        x = normalize(x, self.mean, self.std)
        if generator is not None and self.augmentation != "none":
            padded = self.augmentation == "crop_flip"
            padding = (self.height // PADDING_SHARE, self.width // PADDING_SHARE) if padded else (0, 0)
            x, y = crop_flip(x, padding, generator, y, void=self.void)
        return x.contiguous(), y.long()  # in the default layout, which every model takes

    def check_outputs(self, outputs: Any, count: int) -> str | None:
        """Return why a model's outputs are not (count, classes, height, width), or None."""
        wanted, given = str((count, self.classes, self.height, self.width)), shape_of(outputs)
        return None if given == wanted else f"gives {given} for {count} images, not {wanted}"

    def loss(self, outputs: Tensor | tuple[Tensor, ...], y: Tensor) -> Tensor:
        """Return the mean cross-entropy of all pixels that are not void (0 without any), summed over all heads."""
        heads = (outputs,) if isinstance(outputs, Tensor) else outputs
        pixels = (y != self.void).sum().clamp(min=1)
        losses = [functional.cross_entropy(o, y, ignore_index=self.void, reduction="sum") / pixels for o in heads]
        return torch.stack(losses).sum()

    @property
    def tally_shape(self) -> tuple[int, ...]:
        """The shape of the confusion matrix."""
        return self.classes, self.classes

    def tally(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the confusion matrix, int64 (classes, classes): pixels by their class and by the predicted class."""
        counted = y != self.void
        cells = y[counted] * self.classes + outputs.argmax(1)[counted]
        return torch.bincount(cells, minlength=self.classes**2).view(self.classes, self.classes)

    def read(self, tally: NDArray[Any]) -> dict[str, float]:
        """Return mean intersection over union, over the classes that occur or are predicted, and pixel accuracy."""
        right = np.diagonal(tally).astype(float)
        union = tally.sum(0) + tally.sum(1) - right
        occurs = union > 0
        iou = right[occurs] / union[occurs]
        return {
            "mean_iou": float(iou.sum()) / max(len(iou), 1),
            "accuracy": float(right.sum()) / max(int(tally.sum()), 1),
        }

    def _decode(self, pairs: Iterable[Pair], count: int, place: Place, split: Split) -> Arrays:
        """Decode all pairs into x and y as they are stored, and count the pixels of each label."""
        if not count:
            raise place.error("empty", "has no images")
        require_pillow(place)
        from PIL import Image

        x = np.empty((count, 3, self.height, self.width), np.uint8)
        y = np.empty((count, self.height, self.width), np.uint8)
        pixels = np.zeros(256, np.int64)
        size, maps = (self.width, self.height), MapReader(place)
        for number, (name, *pair) in enumerate(pairs):
            try:
                image, labels = (open_image(encoded) for encoded in pair)
                image = image.convert("RGB")
            except Exception as error:  # decoders raise any exception on broken files
                raise place.error(
                    "image", f"{name} cannot be decoded: {first_line(error)}; replace the file"
                ) from error
            known = maps.read(labels, name)
            if known.shape != (image.height, image.width):
                shapes = f"the label map has shape {known.shape}, its image ({image.height}, {image.width})"
                raise place.error("shape", f"{name}: {shapes}; make them the same")
            x[number] = np.asarray(image.resize(size, Image.Resampling.BILINEAR)).transpose(2, 0, 1)
            classes = Image.fromarray(self._classes_of(known, name))
            y[number] = np.asarray(classes.resize(size, Image.Resampling.NEAREST))
            pixels += np.bincount(y[number].ravel(), minlength=256)
        found = self._occurring(pixels)
        if not found or (split == "train" and place.key != DeviceScenes.path_key):  # a device may have a single class
            words = f"the {count:,} label maps of {split}"
            refuse_few_classes(found, maps.labels, self.first_class, self.void, place, words)
        return {"x": x, "y": y, "pixels": pixels}

    def _classes_of(self, labels: NDArray[np.int64], name: str) -> NDArray[np.uint8]:
        """Return stored labels as classes from 0, and void."""
        last = self.first_class + self.classes - 1
        void = (labels == self.void) | ((labels >= 0) & (labels < self.first_class))
        wrong = labels[~void & ((labels < 0) | (labels > last))]
        if wrong.size:
            allowed = f"neither a class ({self.first_class} to {last}) nor dataset.void={self.void}"
            problem = f"dataset.classes={self.classes}: {name} has the label {wrong[0]}, {allowed}"
            raise DataError(problem, code="label", key="dataset.classes", value=self.classes)
        return np.where(void, self.void, labels - self.first_class).astype(np.uint8)


class DeviceScenes(Segmentation):
    """The images of a device."""

    path_key = "data-path"
