"""Columns of a table that hold the label a second time, such as its name beside its number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fedmrn_app.data.columns import Table, read_column
from fedmrn_app.data.labels import Labels, listed
from fedmrn_app.data.rows import ColumnKind, RowQuery, way_to_ignore

MIN_ROWS = 30  # in fewer rows a column may go with the classes by chance
_FIRST = 1000  # rows in which most columns show that they have more values than there are classes


def refuse_copies(table: Table, features: Sequence[tuple[str, ColumnKind]], labels: Labels, query: RowQuery) -> None:
    """Refuse inputs of which each value stands for one class and each class for one value.

    A model that reads such a column learns nothing else. Columns that `dataset.kinds` names are not looked at.

    Args:
        table: the rows.
        features: the columns that are inputs, with what they hold.
        labels: the labels of the rows.
        query: what the configuration names.

    Raises:
        DataError: there is one.
    """
    found = list(_copies(table, [each for each in features if each[0] not in (query.kinds or {})], labels, query))
    if found:
        names = [name for name, _ in found]
        keep = ",".join(f"{name}:{kind}" for name, kind in found)
        what = f"column{'s' * (len(found) > 1)} {listed(names)} would tell the label: each class has one value"
        keeps = f"dataset.kinds={{{keep}}} makes an input of what is not a copy"
        raise query.place.error("ambiguous", f"{what}; {way_to_ignore(names)}; {keeps}")


def _copies(
    table: Table, features: Sequence[tuple[str, ColumnKind]], labels: Labels, query: RowQuery
) -> Iterator[tuple[str, ColumnKind]]:
    classes, index = np.unique(labels.index, return_inverse=True)
    if labels.values is not None or len(labels) < MIN_ROWS or len(classes) < 2:
        return
    with query.place.reading():
        first = table.head(_FIRST, columns=[name for name, kind in features if kind != "vector"])
        few = {name for name in first.column_names if len(first.column(name).unique()) <= len(classes)}
    for name, kind in features:
        if name not in few or (column := read_column(table, name, query.place)).null_count:
            continue
        values = column.combine_chunks().dictionary_encode()
        codes = values.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        pairs = len(np.unique(codes * len(classes) + index))
        if len(values.dictionary) == len(classes) == pairs:
            yield name, kind
