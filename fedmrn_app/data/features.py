"""The inputs of a table: numbers, vectors, and categories as a column of zeros and ones for each value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.columns import read_column
from fedmrn_app.data.labels import listed
from fedmrn_app.data.place import Place
from fedmrn_app.data.rows import ColumnKind, check_table
from fedmrn_app.data.samples import Rows

Table = Any  # a pyarrow.dataset.Dataset


@dataclass(frozen=True)
class Features:
    """The columns that are the inputs of a table.

    Attributes:
        table: the rows.
        place: what errors name.
        kinds: what each column holds, in the order of the columns.
        categories: the values of each column of categories.
    """

    table: Table
    place: Place
    kinds: Mapping[str, ColumnKind]
    categories: Mapping[str, tuple[str, ...]]

    def read(self, rows: Rows) -> NDArray[np.float64]:
        """Return rows of numbers, float64 (n, columns).

        A category that is missing, or that is not among the known values, is zero in all columns of its values.

        Raises:
            DataError: a number is missing or not finite, or vectors have several lengths.
        """
        blocks = [self._block(name) for name in self.kinds]
        names = tuple(name for name, block in zip(self.kinds, blocks, strict=True) for _ in range(block.shape[1]))
        return check_table(np.concatenate(blocks, 1), self.place, names)[rows]

    def widths(self) -> dict[str, int]:
        """Return the number of inputs of each column."""
        found = {}
        for name, kind in self.kinds.items():
            found[name] = len(self.categories[name]) if kind == "category" else 1
            if kind == "vector":
                found[name] = self._block(name).shape[1]
        return found

    def unknown(self) -> dict[str, int]:
        """Return the number of rows whose category is missing or not among the known values, by column, if any."""
        missing = {}
        for name, kind in self.kinds.items():
            if kind == "category" and (count := int((~self._block(name).any(1)).sum())):
                missing[name] = count
        return missing

    def strangers(self) -> dict[str, int]:
        """Return the number of rows whose category is not among the known values, by column, if any."""
        found = {}
        for name in (name for name, kind in self.kinds.items() if kind == "category"):
            encoded = read_column(self.table, name, self.place).combine_chunks().dictionary_encode()
            new = ~np.isin(texts_of(encoded.dictionary), ["", *self.categories[name]])
            numbers = encoded.indices.drop_null().to_numpy(zero_copy_only=False).astype(np.int64)
            if count := int(new[numbers].sum()):
                found[name] = count
        return found

    def _block(self, name: str) -> NDArray[np.float64]:
        """Return the inputs of one column, float64 (n, width)."""
        column = read_column(self.table, name, self.place)
        if self.kinds[name] == "category":
            values = texts_of(column)
            known = np.array(self.categories[name], np.str_)
            return np.asarray(values[:, None] == known[None, :], np.float64)
        if self.kinds[name] == "vector":
            return self._vectors(name, column)
        return numbers_of(column, self.place)[:, None]

    def _vectors(self, name: str, column: Any) -> NDArray[np.float64]:
        from pyarrow import compute

        lengths = np.unique(compute.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.float64))
        if len(lengths) != 1 or np.isnan(lengths[0]):
            words = listed([("missing" if np.isnan(length) else f"{length:g}") for length in lengths])
            raise self.place.error("shape", f"column {name} holds vectors of lengths {words}; all must have one length")
        values = numbers_of(compute.list_flatten(column), self.place)
        return values.reshape(len(column), int(lengths[0]))


def numbers_of(column: Any, place: Place) -> NDArray[np.float64]:
    """Return a column of numbers as float64 (n,), with NaN for what is missing."""
    from pyarrow import float64, types

    with place.reading():
        if types.is_decimal(column.type):
            column = column.cast(float64())
        return np.asarray(column.to_numpy(), np.float64)


def texts_of(column: Any) -> NDArray[np.str_]:
    """Return a column of texts or whole numbers as texts (n,), empty where they are missing."""
    return np.array(["" if value is None else str(value) for value in column.to_pylist()], np.str_)


def find_categories(
    table: Table, kinds: Mapping[str, ColumnKind], known: Mapping[str, tuple[str, ...]], place: Place
) -> dict[str, tuple[str, ...]]:
    """Return the values of each column of categories in alphabetical order, except for those that are known."""
    found = {}
    for name in (name for name, kind in kinds.items() if kind == "category"):
        values = np.unique(texts_of(read_column(table, name, place)))
        found[name] = known[name] if name in known else tuple(str(value) for value in values if value)
    return found
