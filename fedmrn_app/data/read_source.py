"""What every reader gives: the rows of one split as they lie somewhere, and how to get at them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.read_labels import Labels
from fedmrn_app.errors import DataError

Form = Literal["image", "table", "ids"]
RowNumbers = NDArray[np.int64]
Report = Callable[[str], None] | None  # is told in one line of what takes long


@dataclass(frozen=True)
class Wanted:
    """What is asked of a place.

    Attributes:
        said: how errors begin, such as `dataset.path=/data/mine`.
        form: what its rows must be, None for whatever they are.
        image_column: the name of a column, None to find it.
        feature_columns: of a table, None for all columns of numbers but the label's.
        label_column: as `image_column`.
    """

    said: str
    form: Form | None = None
    image_column: str | None = None
    feature_columns: tuple[str, ...] | None = None
    label_column: str | None = None

    def advice(self, key: str, value: str = "NAME") -> str:
        """What to do about a column: the configuration is the run's, a device can change its files only."""
        return f"say dataset.{key}={value}" if self.said.startswith("dataset") else "name it as the run does"


@dataclass(frozen=True)
class Source:
    """One split. Nothing large is read before `inputs` is called.

    Attributes:
        form: what the rows are.
        labels: of all rows.
        inputs: returns those of the given rows: uint8 (n, channels, height, width), float64 (n, columns) or
            int64 (n, length).
        columns: the names of a table's columns, where they have some.
    """

    form: Form
    labels: Labels
    inputs: Callable[[RowNumbers], NDArray[Any]]
    columns: tuple[str, ...] | None = None


Splits = Mapping[str, Callable[[], Source]]  # `train`, `test` or both; rows that are not split are `train`


def check_table(x: NDArray[Any], said: str, columns: tuple[str, ...] | None = None) -> NDArray[np.float64]:
    """Return a table of numbers (n, columns) as float64.

    Raises:
        DataError: it has no columns, or a value is not finite.
    """
    table = np.asarray(x, np.float64)
    if not table.shape[1]:
        raise DataError(f"{said}: the table has no columns")
    for row, column in np.argwhere(~np.isfinite(table))[:1]:
        name = column if columns is None else columns[column]
        raise DataError(
            f"{said}: column {name} is {table[row, column]} in row {row}; every value must be a finite number, "
            "fill it in or leave the row out"
        )
    return table
