"""Classification of images, tables or rows of text ids.

Of images it is the task of Li et al. 2024, section 5.1. What a data set's file in conf/dataset/ does not say, as
own.yaml does not, is measured on the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedmrn_app.data.read_digits import DIGITS_TEST_SIZES
from fedmrn_app.data.read_labels import count_classes
from fedmrn_app.data.read_location import FORM_WORDS, SHAPE_KEYS, Location
from fedmrn_app.data.read_source import Form, Wanted
from fedmrn_app.data.read_statistics import measure_rows
from fedmrn_app.errors import ConfigError, DataError
from fedmrn_app.tasks.task import Report, Samples, Split, Task
from fedmrn_app.validation import Count, Range

Augmentation = Literal["none", "crop_flip"]

CROP_PADDING = 4  # in the published code of Li et al. 2024: random crop of the image's own size after padding by 4


@dataclass(frozen=True)
class Classification(Task):
    """Labelled rows; what is None is read from the data by `measured`.

    Stored are labels int64 (n,) and images uint8 (n, channels, height, width), tables float64 (n, columns) or ids int64
    (n, length).
    """

    kind: ClassVar[str] = "classification"

    task: Literal["classification"] = "classification"
    hub: str | None = None
    subset: str | None = None
    path: str | None = None  # of a folder or file, see `readers.FORMS`; it takes the place of the hub
    image_column: str | None = None  # of parquet files and saved data sets; None: the only one of images
    feature_columns: tuple[str, ...] | None = None  # of a table; None: all columns of numbers but the label's
    label_column: str | None = None  # None: the one called label, labels, target, class or y
    test_share: Annotated[float, Range(above=0, below=1)] = 0.2  # cut off where `path` has no test split
    form: Form | None = None
    channels: Count | None = None
    height: Count | None = None
    width: Count | None = None
    features: Count | None = None  # columns of a table
    window: Count | None = None  # ids in a row
    vocabulary: Annotated[int, Range(least=2, below=1 << 31)] | None = None  # ids count from 0 to below it
    classes: Annotated[int, Range(least=2, below=1 << 31)] | None = None
    names: Annotated[tuple[str, ...], Range(least=2)] | None = (
        None  # of the classes in their order; None where they are numbers
    )
    mean: tuple[float, ...] | None = None  # of each channel of pixels in [0, 1], or of each column
    std: tuple[Annotated[float, Range(above=0)], ...] | None = None
    augmentation: Augmentation = "none"
    model: str = "auto"
    test_size: Count | None = None  # rows, of digits

    def __post_init__(self) -> None:
        for wrong in self._mistakes():
            raise ConfigError(f"dataset.{wrong}")

    def _mistakes(self) -> list[str]:
        """What is wrong with the configuration, key by key."""
        wrong = []
        if self.path == "":
            wrong.append("path=: must name a place, or be null")
        if self.name == "digits" and self.path is not None:
            wrong.append(f"path={self.path}: digits come with scikit-learn; take dataset=own for rows of your own")
        least, most = DIGITS_TEST_SIZES
        if self.name == "digits" and not least <= (self.test_size or least) <= most:
            wrong.append(f"test_size={self.test_size}: must be from {least} to {most}, of 1797 rows with ten labels")
        for key in ("image_column", "label_column"):
            if getattr(self, key) == "":
                wrong.append(f"{key}=: must name a column, or be null")
        if self.feature_columns == ():
            wrong.append("feature_columns=[]: must name a column, or be null")
        if self.feature_columns and self.image_column:
            wrong.append(f"image_column={self.image_column}: must be null where there are dataset.feature_columns")
        if self.names is not None and len(set(self.names)) != (self.classes or len(self.names)):
            wrong.append(f"names=[{', '.join(self.names)}]: must be {self.classes or len(self.names)} different names")
        form = self._form()
        if form in ("table", "ids") and self.augmentation != "none":
            wrong.append(f"augmentation={self.augmentation}: is for images; these are {FORM_WORDS[form]}")
        count = {"image": self.channels, "table": self.features, "ids": None, None: None}[form]
        for key in ("mean", "std"):
            values = getattr(self, key)
            if values is not None and count is not None and len(values) != count:
                what = "channel" if form == "image" else "column"
                shown = ", ".join(f"{value:g}" for value in values[:8])
                wrong.append(f"{key}=[{shown}]: must have one value for each {what}, of which there are {count}")
            if values is not None and form == "ids":
                wrong.append(f"{key}: must be null for rows of ids, which are not normalised")
        return wrong

    def load(self, split: Split, report: Report | None = None) -> Samples:
        """Return one split, mapped read-only; it is read on first use.

        Raises:
            DataError: it cannot be read, or is not as it was measured.
        """
        if not self.inputs():
            raise DataError(f"dataset={self.name}: what its rows are is not known yet; measure it first")
        stored = self._location().load(split, self.names, int(self.classes or 0), report)
        self._location().check_rows(stored["x"], self.inputs())
        return Samples(stored["x"], stored["y"], stored["y"])

    def measured(self, report: Report | None = None) -> Classification:
        """Fill in what is None from the training split, or from the test split where there is no other.

        Raises:
            DataError: it cannot be read, or its rows are of one class.
        """
        complete = bool(self.inputs()) and (self._form() == "ids" or None not in (self.mean, self.std))
        if complete and (self.path is None or self.names is not None):
            return self
        location = self._location()
        split, source = location.first()
        names, classes = self.names, self.classes
        if names is None and not (classes is not None and source.labels.declared):
            names, classes = count_classes(source.labels, location.said, classes)
        if complete and names is None:
            return self
        task = replace(
            self,
            form=self._form() or source.form,
            names=names,
            classes=classes if names is None else len(names),
            feature_columns=source.columns or self.feature_columns,
        )
        location = task._location()
        x = location.load(split, task.names, int(task.classes or 0), report)["x"]
        found = measure_rows(source.form, x, location.said)
        task = replace(task, **{key: value for key, value in found.items() if getattr(task, key) is None})
        location.check_rows(x, task.inputs())
        return task

    def local(self, path: str) -> Classification:
        """The same task on a device's rows, in any form; `load` checks them against what was measured."""
        if not self.inputs():
            raise DataError(f"data-path={path}: what the rows of {self.name} are is not known yet; measure it first")
        return DeviceRows(**{field.name: getattr(self, field.name) for field in fields(self)}, where=path)

    def inputs(self) -> Mapping[str, Any]:
        """The number of classes and the shape of a row, and what else models of its form ask for.

        Images: channels and size (height, width). Tables: features. Ids: vocabulary and window. Nothing while one of
        them is to be measured.
        """
        form = self._form()
        known = {key: getattr(self, key) for key in (*SHAPE_KEYS.get(form, ()), "classes")}
        if form == "ids":
            known = {"vocabulary": self.vocabulary, **known}
        if form is None or None in known.values():
            return {}
        shape = tuple(known[key] for key in SHAPE_KEYS[form])
        if form == "image":
            return {"channels": self.channels, "size": shape[1:], "shape": shape, "classes": self.classes}
        return {**known, "shape": shape}

    def example(self, count: int) -> Tensor:
        """Black images, or rows of zeros."""
        kind = torch.int64 if self._form() == "ids" else torch.float32
        return torch.zeros(count, *self.inputs()["shape"], dtype=kind)

    def model_name(self) -> str | None:
        """The data set's own, or what suits the shape of the rows."""
        known = self.inputs()
        if self.model != "auto" or not known:
            return None if self.model == "auto" else self.model
        if "vocabulary" in known:
            return "char_lstm"
        side = min(known.get("size", (0,)))
        return "cnn4" if side >= 16 else "digits" if side >= 4 else "mlp"

    def batch(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """What the model takes, and the labels.

        Images: normalised float32 (b, channels, height, width) in channels-last memory. Tables: normalised float32
        (b, columns). Ids: int64 (b, length).
        """
        form = self._form()
        if form == "ids":
            return x.long(), y
        mean, std = self.mean or (), self.std or ()
        if form == "table":  # in float64, which holds columns of large numbers such as times
            center, scale = (torch.tensor(values, dtype=torch.float64, device=x.device) for values in (mean, std))
            return ((x.double() - center) / scale).float(), y
        images = normalise(x, mean, std)
        if generator is not None and self.augmentation == "crop_flip":
            images = crop_flip(images, generator)
        return images.contiguous(memory_format=torch.channels_last), y

    def _form(self) -> Form | None:
        """What the rows are; the files of images in conf/dataset/ say it by their channels."""
        return "image" if self.form is None and self.channels is not None else self.form

    def _location(self) -> Location:
        """Where the run's rows are."""
        said = f"dataset={self.name}" if self.path is None else f"dataset.path={self.path}"
        whose = "the training split's" if self.hub is None else f"{self.name}'s"
        return self._at("dataset.path", self.path, said, whose, self.test_share)

    def _at(self, key: str, path: str | None, said: str, whose: str, share: float | None) -> Location:
        wanted = Wanted(said, self._form(), self.image_column, self.feature_columns, self.label_column)
        return Location(self.name, key, path, self.hub, self.subset, wanted, whose, share, self.test_size)


@dataclass(frozen=True)
class DeviceRows(Classification):
    """A device's own rows at `where`, in place of the run's: all of them, or their training split."""

    where: str = ""

    def measured(self, report: Report | None = None) -> Classification:
        """The task itself: what was measured is the run's."""
        return self

    def _location(self) -> Location:
        return self._at("data-path", self.where, f"data-path={self.where}", "the run's", None)


def normalise(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return (pixels / 255 - mean) / std, channel by channel, as float32 of the same shape (n, channels, h, w)."""
    scale = torch.tensor([1 / (255 * s) for s in std], device=pixels.device).view(1, -1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=pixels.device).view(1, -1, 1, 1)
    return torch.addcmul(shift, pixels.float(), scale)


def crop_flip(x: Tensor, generator: torch.Generator) -> Tensor:
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
