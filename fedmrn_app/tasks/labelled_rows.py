"""Labelled rows of images, tables or text ids, from any place on disk, from the hub or from scikit-learn.

What the label is, a class or a quantity, is said by the tasks that derive from it. A key that is null in a data set's
file in conf/dataset/, as most are in own.yaml, is read from the data.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmrn_app.data.digits import DIGITS_TEST_SIZES
from fedmrn_app.data.images import by
from fedmrn_app.data.labels import Labels
from fedmrn_app.data.load import FORM_WORDS, SHAPE_KEYS, check_shape, describe_rows, load_rows, open_rows, open_splits
from fedmrn_app.data.place import Place
from fedmrn_app.data.pooling import pool_inputs
from fedmrn_app.data.repeated_rows import WORTH_SAYING, contradicting_rows, repeated_rows, row_hashes
from fedmrn_app.data.rows import ColumnKind, Folders, Form, RowQuery, Tokenizer
from fedmrn_app.data.site_statistics import KEY as STATISTICS_KEY
from fedmrn_app.data.site_statistics import SiteStatistics, read_sites, site_statistics
from fedmrn_app.data.statistics import measure_rows
from fedmrn_app.data.summary import DataSummary, SplitRows
from fedmrn_app.data.texts import VOCABULARY
from fedmrn_app.errors import ConfigError, DataError
from fedmrn_app.tasks.augmentation import crop_flip, normalize
from fedmrn_app.tasks.task import Report, Samples, Split, Task
from fedmrn_app.validation import Count, Range

CROP_PADDING = (4, 4)  # in the published code of Li et al. 2024: a random crop of the image's own size after padding
LEAST_UNITS, MOST_UNITS = 128, 1024  # of a hidden layer for a table: fewer make too few weights to mask
_TABLE_KEYS = ("image_column", "feature_columns", "label_column", "group_column", "text_column", "ignore", "kinds")
_OTHER_KEYS = ("categories", "folders", "image_mode", "image_size", "image_max", "tokenizer", "window", "vocabulary")
_QUERY_KEYS = ("name", "hub", "subset", "test_share", "test_size", *_TABLE_KEYS, *_OTHER_KEYS)


@dataclass(frozen=True, kw_only=True)
class LabelledRows(Task):
    """Labelled rows; `measured` reads from the data every key that is None.

    Samples store images uint8 (n, channels, height, width), tables float64 (n, columns) or ids int64 (n, length).
    """

    splits: ClassVar[tuple[Split, ...]] = ("train", "val", "test")
    quantity: ClassVar[bool] = False  # whether labels are numbers on a scale, and not classes

    hub: str | None = None
    subset: str | None = None
    path: str | None = None  # a folder or file, see `load.FORMS`, which is read instead of the hub
    statistics: str | tuple[str, ...] | None = None  # files of `data.site_statistics`, or folders of them
    image_column: str | None = None  # of parquet files and saved data sets; None for the only one of images
    feature_columns: tuple[str, ...] | None = None  # of a table; None for all columns of numbers except the label
    label_column: str | None = None  # None for the one called label, labels, target, class or y
    group_column: str | None = None  # the natural group of each row
    text_column: str | None = None  # whose tokens are the ids of a row; None for the only one of text
    ignore: tuple[str, ...] = ()  # columns, arrays or folders that are not used
    kinds: Mapping[str, ColumnKind] | None = None  # of columns: number, category, text or vector
    categories: Mapping[str, tuple[str, ...]] | None = None  # the values of each column of categories
    folders: Folders | None = None  # what the first level of folders of images is
    image_mode: Literal["L", "LA", "RGB", "RGBA"] | None = None  # to which images are converted
    image_size: Count | None = None  # height and width to which images are scaled
    image_max: Count | None = None  # of images of 16 bits, the value that becomes 255
    tokenizer: Tokenizer = "words"
    test_share: Annotated[float, Range(above=0, below=1)] = 0.2  # cut off where `path` has no test split
    form: Form | None = None
    channels: Count | None = None
    height: Count | None = None
    width: Count | None = None
    features: Count | None = None  # columns of a table
    window: Count | None = None  # ids in a row
    vocabulary: Annotated[int, Range(least=2, below=1 << 31)] | None = None  # ids are from 0 to vocabulary - 1
    classes: Annotated[int, Range(least=2, below=1 << 31)] | None = None
    names: Annotated[tuple[str, ...], Range(least=2)] | None = None  # of the classes; None where they are numbers
    mean: tuple[float, ...] | None = None  # of each channel of pixels in [0, 1], or of each column
    std: tuple[Annotated[float, Range(above=0)], ...] | None = None
    augmentation: Literal["none", "crop_flip"] = "none"
    model: str = "auto"
    test_size: Count | None = None  # rows, of the digits

    def __post_init__(self) -> None:
        for key, problem in {**self._row_mistakes(), **self._class_mistakes()}.items():
            value = getattr(self, key)
            shown = value
            if isinstance(value, tuple):
                shown = f"[{', '.join(f'{v:g}' if isinstance(v, float) else v for v in value[:8])}]"
            raise ConfigError(f"dataset.{key}={shown}: {problem}", code="dataset", key=f"dataset.{key}", value=value)

    def _row_mistakes(self) -> dict[str, str]:
        """Return what is wrong with the keys of where the rows are, by key."""
        wrong = {}
        if self.path == "":
            wrong["path"] = "must name a place, or be null"
        elif self.name == "digits" and self.path is not None and self.path_key == Task.path_key:
            wrong["path"] = "digits come with scikit-learn; take dataset=own for rows of your own"
        least, most = DIGITS_TEST_SIZES
        if self.name == "digits" and not least <= (self.test_size or least) <= most:
            wrong["test_size"] = f"must be from {least} to {most}, of 1797 rows with ten labels"
        for key, empty in {"image_column": "", "label_column": "", "feature_columns": ()}.items():
            if getattr(self, key) == empty:
                wrong[key] = "must name a column, or be null"
        if self.feature_columns and self.image_column:
            wrong["image_column"] = "must be null where there are dataset.feature_columns"
        return wrong

    def _class_mistakes(self) -> dict[str, str]:
        """Return what is wrong with the keys of what the rows are, by key."""
        wrong, form, names = {}, self._form(), self.names
        if names is not None and len(set(names)) != (self.classes or len(names)):
            wrong["names"] = f"must be {self.classes or len(names)} different names"
        if form in ("table", "ids") and self.augmentation != "none":
            wrong["augmentation"] = f"is for images; these are {FORM_WORDS[form]}"
        count = {"image": self.channels, "table": self.features}.get(form or "")
        for key in ("mean", "std"):
            values = getattr(self, key)
            if values is not None and count is not None and len(values) != count:
                what = "channel" if form == "image" else "column"
                wrong[key] = f"must have one value for each {what}, of which there are {count}"
            if values is not None and form == "ids":
                wrong[key] = "must be null for rows of ids, which are not normalized"
        return wrong

    def load(self, split: Split, report: Report | None = None) -> Samples:
        """Return one split, mapped read-only; it is read on first use.

        Raises:
            DataError: it cannot be read, or differs from what was measured.
        """
        inputs, query = self._known_inputs(), self._query()
        stored = load_rows(query, split, self.names, int(self.classes or 0), report)
        check_shape(stored["x"], query, inputs["shape"], inputs.get("vocabulary"))
        labels = None if query.quantity else stored["y"]
        return Samples(stored["x"], stored["y"], labels, stored.get("groups"))

    @abstractmethod
    def _outputs(self) -> int | None:
        """Return the number of outputs of a model; None while it is not measured."""

    @abstractmethod
    def _labels_known(self) -> bool:
        """Return whether all that is measured of the labels is known."""

    def _of_labels(self, labels: Labels, place: Place) -> dict[str, Any]:
        """Return the keys that describe the labels, read before the rows.

        Raises:
            DataError: the labels are not those of the task.
        """
        return {}

    @abstractmethod
    def _of_sites(self, sites: Mapping[str, SiteStatistics]) -> dict[str, Any]:
        """Return the keys that describe the labels of all sites.

        Raises:
            DataError: they are not those of the task.
        """

    def _of_values(self, y: NDArray[Any], place: Place) -> dict[str, Any]:
        """Return the keys that describe the labels of the training rows, (n,)."""
        return {}

    def measured(self, report: Report | None = None) -> Self:
        """Fill in what is None from the training split, or from the test split where it is the only one.

        With `statistics` of sites it is filled in from these first. Without a place for rows, but with their shape and
        classes, nothing is read: devices have the rows.

        Raises:
            DataError: it cannot be read, its labels are not those of the task, or the statistics do not fit each other.
        """
        if self.statistics is not None:
            return self._pooled(report).measured(report)
        complete = bool(self.inputs()) and (self._form() == "ids" or None not in (self.mean, self.std))
        if complete and (self.path is None or self._labels_known()):
            return self
        if bool(self.inputs()) and self.path is None and self.hub is None and self.name != "digits":
            return self._unmeasured(report)
        split, opened = open_rows(self._query())
        place = self._query().place
        known = self._of_labels(opened.labels, place)
        if complete and all(getattr(self, key) == value for key, value in known.items()):
            return self
        task = replace(
            self,
            **known,
            form=self._form() or opened.form,
            feature_columns=opened.columns or self.feature_columns,
            kinds=opened.kinds or self.kinds,
            categories=opened.categories or self.categories,
            text_column=opened.text_column or self.text_column,
            vocabulary=self.vocabulary or (VOCABULARY[self.tokenizer] if opened.text_column else None),
        )
        stored = load_rows(task._query(), split, task.names, int(task.classes or 0), report)
        x = stored["x"]
        found = measure_rows(opened.form, x, place, opened.indicators())
        found |= self._of_values(stored["y"], place)
        task = replace(task, **{key: value for key, value in found.items() if getattr(task, key) is None})
        check_shape(x, task._query(), task.inputs()["shape"], task.inputs().get("vocabulary"))
        return task

    def _pooled(self, report: Report | None) -> Self:
        """Return the task with what sites tell of their rows."""
        sites = read_sites((self.statistics,) if isinstance(self.statistics, str) else self.statistics or ())
        found = {**pool_inputs(sites), **self._of_sites(sites)}
        new = {key: value for key, value in found.items() if getattr(self, key) is None}
        task = replace(self, statistics=None, **new)
        if report is not None:
            rows, what = sum(site.rows for site in sites.values()), FORM_WORDS[found["form"]]
            plural = "s" * (len(sites) > 1)
            report(f"{STATISTICS_KEY}: {what}, by the statistics of {len(sites)} site{plural} with {rows:,} rows")
        return task

    def site_statistics(self) -> SiteStatistics:
        """Return what a server without rows needs to know of the rows of this place.

        Raises:
            DataError: they cannot be read.
        """
        return site_statistics(self._query())

    def describe(self, report: Report | None = None) -> DataSummary:
        """Return what becomes of each column, and the rows and classes of each split."""
        query, shape = self._query(), self.inputs()["shape"]
        known = query.place.on_disk  # columns of data sets of the hub are named in their files in conf/dataset/
        entries, stored = describe_rows(query) if known else ([], {"train": 0, "test": 0})
        words = {"image": f"images of {by(shape)}", "table": f"a table of {shape[0]} input{'s' * (shape[0] > 1)}"}
        training = self.load("train", report)
        hashes, use = row_hashes(training), "training"
        count = 0 if training.labels is None else contradicting_rows(hashes)  # quantities differ by nature
        if count > WORTH_SAYING * len(training):
            use += f"; {count:,} of these rows have the inputs of another row with another label"
        splits = [self._split_rows("train", use, training)]

        def add(split: Split, use: str) -> None:
            samples = self.load(split, report)
            count = repeated_rows(hashes, row_hashes(samples))
            if count > WORTH_SAYING * len(samples):
                use += f"; {count:,} of these rows are training rows too"
            splits.append(self._split_rows(split, use, samples))

        cut = f"cut off from the training rows (dataset.test_share={self.test_share:g})"
        if "val" in stored:
            alone = "evaluation, because there is no test split"
            use = "held out; validation=val evaluates on it" if "test" in stored else alone
            add("val", use)
        if "test" in stored or "val" not in stored:
            add("test", "evaluation" if "test" in stored else f"evaluation, {cut}")
        return DataSummary(str(query.place), words.get(str(self._form()), f"rows of {shape[0]} ids"), entries, splits)

    @abstractmethod
    def _split_rows(self, split: Split, use: str, samples: Samples) -> SplitRows:
        """Return what is said of the rows of a split, with what their labels are."""

    def _unmeasured(self, report: Report | None) -> Self:
        """Return the task of devices whose rows nobody else has: without `mean` and `std`, those of the form."""
        channels, features = self.channels or 0, self.features or 0
        mean, std = ((0.0,) * features, (1.0,) * features) if features else ((0.5,) * channels, (0.25,) * channels)
        if self._form() == "ids" or None not in (self.mean, self.std):
            return self
        if report is not None:
            taken = "pixels are taken to have mean 0.5 and deviation 0.25" if channels else "columns are not normalized"
            report(f"dataset={self.name}: no rows to measure here, so {taken}; set dataset.mean and dataset.std")
        return replace(self, mean=self.mean or mean, std=self.std or std)

    def inputs(self) -> Mapping[str, Any]:
        """Return the number of outputs as `classes`, the shape of a row, and what else models of its form take.

        Images have channels and size (height, width), tables features, ids vocabulary and window. The result is empty
        while one of them is not measured.
        """
        form = self._form()
        known = {key: getattr(self, key) for key in SHAPE_KEYS.get(form, ())} | {"classes": self._outputs()}
        if form == "ids":
            known = {"vocabulary": self.vocabulary, **known}
        if form is None or None in known.values():
            return {}
        shape = tuple(known[key] for key in SHAPE_KEYS[form])
        if form == "image":
            return {"channels": self.channels, "size": shape[1:], "shape": shape, "classes": known["classes"]}
        return {**known, "shape": shape}

    def example(self, count: int) -> Tensor:
        """Return black images, or rows of zeros."""
        dtype = torch.int64 if self._form() == "ids" else torch.float32
        return torch.zeros(count, *self.inputs()["shape"], dtype=dtype)

    def check_training(self, outputs: Any, count: int) -> str | None:
        """Return why a model's outputs in training mode are not what the loss takes, which are those of evaluation."""
        return self.check_outputs(outputs, count)

    def model_name(self) -> str | None:
        """Return the data set's own model, or one that suits the shape of the rows."""
        known = self.inputs()
        if self.model != "auto" or not known:
            return None if self.model == "auto" else self.model
        if "vocabulary" in known:
            return "word_average" if self.text_column is not None and self.tokenizer == "words" else "char_lstm"
        side = min(known.get("size", (0,)))
        return "cnn4" if side >= 16 else "digits" if side >= 4 else "mlp"

    def model_options(self) -> Mapping[str, Any]:
        """Return the units of the hidden layers of the model of a table: more where it has more inputs and outputs."""
        if self.model != "auto" or self._form() != "table" or not (known := self.inputs()):
            return {}
        wanted = 2 * (known["features"] + known["classes"])
        return {"hidden": [min(max(1 << (wanted - 1).bit_length(), LEAST_UNITS), MOST_UNITS)] * 2}

    def has_groups(self) -> bool:
        """Return whether a column or folders are named as groups."""
        return self.group_column is not None or self.folders == "groups"

    def batch(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return what the model takes, and the labels.

        Images are normalized float32 (b, channels, height, width); tables normalized float32 (b, columns); ids int64
        (b, length).
        """
        form = self._form()
        if form == "ids":
            return x.long(), y
        mean, std = self.mean or (), self.std or ()
        if form == "table":  # in float64, which holds columns of large numbers such as times
            center, scale = (torch.tensor(values, dtype=torch.float64, device=x.device) for values in (mean, std))
            return ((x.double() - center) / scale).float(), y
        images = normalize(x, mean, std)
        if generator is not None and self.augmentation == "crop_flip":
            (images,) = crop_flip(images, CROP_PADDING, generator)
        return images.contiguous(), y  # in the default layout, which every model takes

    def _form(self) -> Form | None:
        """Return what the rows are; image files in conf/dataset/ tell it by their channels."""
        return "image" if self.form is None and self.channels is not None else self.form

    def _known_inputs(self) -> Mapping[str, Any]:
        if not self.inputs():
            problem = f"dataset={self.name}: the form of its rows is not known yet; measure it first"
            raise DataError(problem, code="not-measured", key="dataset", value=self.name)
        return self.inputs()

    def _query(self) -> RowQuery:
        """Return where the rows are, and what they must be."""
        place = Place("dataset", self.name) if self.path is None else Place(self.path_key, self.path)
        whose = "the training split's" if self.hub is None else f"{self.name}'s"
        keys = {key: getattr(self, key) for key in _QUERY_KEYS}
        return RowQuery(place=place, whose=whose, form=self._form(), quantity=self.quantity, **keys)


class OnDevice(LabelledRows):
    """A device's own rows: all of them, or their training split; a task on a device derives from this first."""

    path_key = "data-path"

    def measured(self, report: Report | None = None) -> Self:
        """Return the task itself, because the run's rows are measured."""
        return self

    def own_test_rows(self) -> Samples | None:
        """Return the test split of the device's place; None where it has none."""
        return self.load("test") if "test" in open_splits(self._query()) else None

    def own_columns(self) -> str | None:
        """Return a checksum of the columns of a table that the run does not name."""
        if self.feature_columns is not None or self._form() != "table":
            return None
        _, opened = open_rows(self._query())
        if not opened.columns:
            return None
        columns = [opened.columns, sorted((name, list(values)) for name, values in (opened.categories or {}).items())]
        return sha256(json.dumps(columns, default=str).encode()).hexdigest()[:16]

    def _query(self) -> RowQuery:
        return replace(super()._query(), whose="the run's", test_share=None)
