"""Where the rows of a run or of a device lie: a place on disk, the hub, or scikit-learn; read once into the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.cache import cached_arrays
from fedmrn_app.data.hub import read_hub_split
from fedmrn_app.data.read_columns import columns_source, dataset_columns
from fedmrn_app.data.read_digits import DIGITS_TEST_SIZE, read_digits
from fedmrn_app.data.read_images import by
from fedmrn_app.data.read_labels import Labels, fit_labels
from fedmrn_app.data.read_source import Form, Report, Source, Splits, Wanted
from fedmrn_app.data.readers import FORMS, find_place, open_split, place_splits, stamp_place
from fedmrn_app.errors import DataError

FORM_WORDS: Mapping[Form, str] = {"image": "images", "table": "a table", "ids": "rows of ids"}
SHAPE_KEYS: Mapping[Form | None, tuple[str, ...]] = {  # of a configuration
    "image": ("channels", "height", "width"),
    "table": ("features",),
    "ids": ("window",),
}


@dataclass(frozen=True)
class Location:
    """Where rows lie, and what is wanted of them.

    Attributes:
        name: of the data set.
        key: of the configuration, that names the place.
        path: the place; None for the hub, or for scikit-learn's digits.
        hub: the data set's name there.
        subset: of the hub's data set.
        wanted: the columns and the form of the rows.
        whose: whom errors compare with, such as `the run's`.
        test_share: what is cut off for testing where the place has no test split; None to cut nothing.
        test_size: rows, of digits.
    """

    name: str
    key: str
    path: str | None
    hub: str | None
    subset: str | None
    wanted: Wanted
    whose: str
    test_share: float | None
    test_size: int | None

    @property
    def said(self) -> str:
        """How errors begin."""
        return self.wanted.said

    def first(self) -> tuple[Literal["train", "test"], Source]:
        """Open what is to be measured: the training split, or the test split where there is no other.

        The source of a training split has the rows too that are cut off for testing.

        Raises:
            DataError: it cannot be read.
        """
        splits = self._splits()
        split: Literal["train", "test"] = "train" if "train" in splits else "test"
        return split, open_split(splits, split, self.said, self.test_share)[0]

    def load(self, split: str, names: tuple[str, ...] | None, classes: int, report: Report) -> Mapping[str, Any]:
        """Return x, see `Source.inputs`, and y int64 (n,) of a split, mapped read-only; read them on first use.

        Args:
            split: `train` or `test`.
            names: of the classes, None where they are numbers.
            classes: how many there are.
            report: is told if it takes long.

        Raises:
            DataError: it cannot be read, is of another form, or has labels of other classes.
        """
        place: object = (self.hub, self.subset, self.test_size)
        if self.path is not None:
            place = stamp_place(self.path, self.key)
        wanted = self.wanted
        columns = (wanted.form, wanted.image_column, wanted.feature_columns, wanted.label_column)
        source = (place, split, self.test_share, columns, names, classes)
        return cached_arrays(self.name, source, lambda: self._read(split, names, classes, report), report)

    def check_rows(self, x: NDArray[Any], known: Mapping[str, Any]) -> None:
        """Refuse rows that are not as the configuration says.

        Args:
            x: as `load` gives them.
            known: `shape` of a row, and `vocabulary` where the rows are ids.

        Raises:
            DataError: names both shapes, or the id that is too high.
        """
        form, shape, expected = self.wanted.form, tuple(x.shape[1:]), known["shape"]
        if shape != expected and self.path is None:  # no place to name, but a key
            keys = zip(SHAPE_KEYS[form], expected, shape, strict=True)
            key, value, allowed = next((k, v, a) for k, v, a in keys if v != a)
            raise DataError(f"dataset.{key}={value}: must be {allowed} for {self.name}")
        if shape != expected and form == "image":
            raise DataError(f"{self.said}: images are {by(shape)}, {self.whose} are {by(expected)}")
        if shape != expected:
            what = "columns" if form == "table" else "ids"
            raise DataError(f"{self.said}: rows have {shape[0]} {what}, {self.whose} have {expected[0]}")
        vocabulary = known.get("vocabulary")
        if vocabulary is not None and x.max() >= vocabulary:
            raise DataError(
                f"{self.said}: has the id {x.max()}, {self.whose} are 0 to {vocabulary - 1}; start the run with "
                f"dataset.vocabulary={x.max() + 1} or more"
            )

    def _read(self, split: str, names: tuple[str, ...] | None, classes: int, report: Report) -> dict[str, NDArray[Any]]:
        splits, form = self._splits(), self.wanted.form
        source, rows = open_split(splits, split, self.said, self.test_share)
        if report is not None and split == "test" and "test" not in splits:
            report(f"{self.said}: no test split; {len(rows)} of the {len(source.labels)} rows are cut off for testing")
        if form is not None and source.form != form:
            raise DataError(f"{self.said}: holds {FORM_WORDS[source.form]}, {self.whose} are {FORM_WORDS[form]}")
        said = f"{self.said}, test split" if split == "test" else self.said
        y = fit_labels(source.labels, names, classes, said, f"{self.whose} classes")
        return {"x": source.inputs(rows), "y": np.asarray(y[rows])}

    def _splits(self) -> Splits:
        """The splits there are, none of them read yet."""
        if self.path is not None:
            return place_splits(find_place(self.path, self.key), self.wanted)
        if self.name == "digits":
            return {"train": lambda: self._digits("train"), "test": lambda: self._digits("test")}
        if self.hub is None:
            raise DataError(f"dataset={self.name}: say dataset.path=PLACE, where its rows are: {FORMS}")
        return {"train": lambda: self._hub_split("train"), "test": lambda: self._hub_split("test")}

    def _digits(self, split: str) -> Source:
        stored = read_digits(split, self.test_size or DIGITS_TEST_SIZE)
        return Source("image", Labels(stored["y"]), lambda rows: stored["x"][rows])

    def _hub_split(self, split: str) -> Source:
        rows = read_hub_split(self.name, self.hub, self.subset, None, split)
        return columns_source(dataset_columns(rows), self.wanted)
