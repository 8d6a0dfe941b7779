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
    """Where labelled rows are, and which of their columns are read."""

    name: str  # of the data set
    place: Place  # with the key `dataset` the rows come from the hub, or from scikit-learn
    hub: str | None = None  # the data set's name on the hub
    subset: str | None = None  # its configuration there
    form: Form | None = None  # what the rows must be; None for any form
    image_column: str | None = None  # None to find it
    feature_columns: tuple[str, ...] | None = None  # of a table; None for all columns of numbers except the label
    label_column: str | None = None  # None to find it
    test_share: float | None = None  # cut off of each class where there is no test split; None to cut nothing
    test_size: int | None = None  # number of test rows, of the digits
    whose: str = "the run's"  # what errors call the rows that these must fit

    def advice(self, key: str, value: str = "NAME") -> str:
        """Return how to name a column: a run sets a key of its configuration, a device can only change its files."""
        return "name it as the run does" if self.place.key == "data-path" else f"set dataset.{key}={value}"


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
