"""What a reader of labelled rows is asked for, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.labels import Labels
from fedmrn_app.data.place import Place
from fedmrn_app.data.samples import Rows

Form = Literal["image", "table", "ids"]


@dataclass(frozen=True, kw_only=True)
class RowQuery:
    """Where labelled rows are, and which of their columns are read.

    Attributes:
        name: the name of the data set.
        place: the path; with the key `dataset` the rows come from the hub, or from scikit-learn.
        hub: the data set's name on the hub.
        subset: its configuration there.
        form: what the rows must be; None for any form.
        image_column: name of the column of images; None to find it.
        feature_columns: columns of a table; None for all columns of numbers except the label.
        label_column: name of the column of labels; None to find it.
        test_share: share of each class that is cut off for testing where there is no test split; None to cut nothing.
        test_size: number of test rows, of the digits.
        whose: what errors call the rows that these must fit, such as `the run's`.
    """

    name: str
    place: Place
    hub: str | None = None
    subset: str | None = None
    form: Form | None = None
    image_column: str | None = None
    feature_columns: tuple[str, ...] | None = None
    label_column: str | None = None
    test_share: float | None = None
    test_size: int | None = None
    whose: str = "the run's"

    def advice(self, key: str, value: str = "NAME") -> str:
        """Return how to name a column: a run sets a key of its configuration, a device can only change its files."""
        return "name it as the run does" if self.place.key == "data-path" else f"say dataset.{key}={value}"


@dataclass(frozen=True)
class OpenRows:
    """One split, of which only the labels are read.

    Attributes:
        form: what the rows are.
        labels: the labels of all rows.
        inputs: reads the given rows: uint8 (n, channels, height, width), float64 (n, columns) or int64 (n, length).
        columns: the names of a table's columns, where they have names.
    """

    form: Form
    labels: Labels
    inputs: Callable[[Rows], NDArray[Any]]
    columns: tuple[str, ...] | None = None


Splits = Mapping[str, Callable[[], OpenRows]]  # `train`, `test` or both; rows that are not split are `train`


def check_table(x: NDArray[Any], place: Place, columns: tuple[str, ...] | None = None) -> NDArray[np.float64]:
    """Return a table of numbers (n, columns) as float64.

    Raises:
        DataError: the table has no columns, or a value is not finite.
    """
    table = np.asarray(x, np.float64)
    if not table.shape[1]:
        raise place.error("empty", "the table has no columns")
    for row, column in np.argwhere(~np.isfinite(table))[:1]:
        name = column if columns is None else columns[column]
        raise place.error(
            "not-finite",
            f"column {name} is {table[row, column]} in row {row}; every value must be a finite number, fill it in or "
            "leave the row out",
        )
    return table
