"""Labelled rows in named columns: parquet files, folders written by `save_to_disk`, and data sets of the hub.

All of them are opened as a `pyarrow.dataset.Dataset`, which reads a column when it is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.images import stack_images
from fedmrn_app.data.labels import Labels, encode_labels, listed
from fedmrn_app.data.place import Place
from fedmrn_app.data.rows import OpenRows, RowQuery, check_table
from fedmrn_app.data.samples import Rows
from fedmrn_app.errors import needs_extra

Table = Any  # a pyarrow.dataset.Dataset
LABEL_COLUMNS = ("label", "labels", "target", "class", "y")  # names by which a column of labels is found
SAVED_FILES = ("dataset_dict.json", "state.json")  # of `DatasetDict.save_to_disk` and `Dataset.save_to_disk`
# as the hub names files: train-00000-of-00001.parquet, data/test/0.parquet
SPLIT_NAMES = {split: re.compile(rf"(^|[-._ /]){split}(ing)?[-._ /]") for split in ("train", "test")}


def open_tables(path: Path, place: Place) -> Mapping[str, Callable[[], Table]]:
    """Return the splits of parquet files or of a saved data set, none where a folder holds neither.

    Raises:
        DataError: a saved data set cannot be read, or has several splits of other names.
    """
    if any((path / name).is_file() for name in SAVED_FILES):
        return _saved_tables(path, place)
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    found: dict[str, list[Path]] = {}
    for file in files:
        name = file.relative_to(path).as_posix().lower()
        for split in [split for split, pattern in SPLIT_NAMES.items() if pattern.search(name)][:1]:
            found.setdefault(split, []).append(file)
    if files and not found:
        found = {"train": files}
    return {split: partial(_open_parquet, some, place) for split, some in found.items()}


def table_of(rows: Any) -> Table:
    """Return a `datasets.Dataset`, which has no row selection, as an Arrow data set mapped from the same files."""
    from pyarrow import dataset

    return dataset.dataset(rows.data.table)


def read_column(table: Table, name: str, place: Place) -> Any:
    """Return a column as a `pyarrow.ChunkedArray`."""
    with place.reading():
        return table.to_table(columns=[name]).column(name)


def columns_rows(table: Table, query: RowQuery) -> OpenRows:
    """Open rows of images or of a table, by the columns that are named or found.

    Raises:
        DataError: a column is missing, is not the only candidate, or does not hold what it should.
    """
    place = query.place
    label = _label_column(table, query)
    labels = _labels(table, label, place)
    image = _image_column(table, query)
    if image is not None:

        def images(rows: Rows) -> NDArray[np.uint8]:
            column = read_column(table, image, place)
            cells = ((f"column {image} of row {row}", column[int(row)].as_py()) for row in rows)
            return stack_images(cells, len(rows), place)

        return OpenRows("image", labels, images)
    features = _feature_columns(table, label, query)

    def numbers(rows: Rows) -> NDArray[np.float64]:
        values = [np.asarray(read_column(table, name, place).to_numpy(), np.float64) for name in features]
        return check_table(np.stack(values, 1), place, features)[rows]

    return OpenRows("table", labels, numbers, features)


def _saved_tables(path: Path, place: Place) -> dict[str, Callable[[], Table]]:
    with needs_extra("data", place.key, place.value):
        from datasets import DatasetDict, load_from_disk

    with place.reading("read as a folder of save_to_disk"):
        saved = load_from_disk(str(path))
    parts = dict(saved) if isinstance(saved, DatasetDict) else {"train": saved}
    found = {split: rows for split, rows in parts.items() if split in ("train", "test")}
    if not found and len(parts) != 1:
        raise place.error("split", f"has the splits {', '.join(parts) or 'none'}, but neither train nor test")
    found = found or {"train": next(iter(parts.values()))}
    return {split: partial(table_of, rows) for split, rows in found.items()}


def _open_parquet(files: list[Path], place: Place) -> Table:
    with needs_extra("data", place.key, place.value):
        from pyarrow import dataset

    with place.reading("read as parquet"):
        return dataset.dataset([str(file) for file in files], format="parquet")


def _names(table: Table) -> list[str]:
    """Return the names of all columns except the row numbers that pandas adds."""
    return [name for name in table.schema.names if not name.startswith("__index_level_")]


def _kind(table: Table, name: str) -> Any:
    return table.schema.field(name).type


def _known(table: Table, name: str, key: str, query: RowQuery) -> str:
    if name in table.schema.names:
        return name
    way = query.advice(key, "[NAME,...]" if key == "feature_columns" else "NAME")
    raise query.place.error(
        "column", f"has no column {name} (dataset.{key}); its columns are {listed(_names(table))}; {way}"
    )


def _label_column(table: Table, query: RowQuery) -> str:
    if query.label_column is not None:
        return _known(table, query.label_column, "label_column", query)
    found = [name for name in _names(table) if name.lower() in LABEL_COLUMNS]
    if len(found) == 1:
        return found[0]
    which = f"several columns may be the label ({', '.join(found)})" if found else "no column is called label"
    columns = listed(_names(table))
    raise query.place.error("column", f"{which}; its columns are {columns}; {query.advice('label_column')}")


def _labels(table: Table, name: str, place: Place) -> Labels:
    with needs_extra("data", place.key, place.value):
        from datasets import ClassLabel, Features
        from pyarrow import types

    column, kind = read_column(table, name, place), _kind(table, name)
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise place.error("label", f"row {row} has no label in column {name}; leave it out")
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if str(kind) in ("string", "large_string", "string_view"):
        return encode_labels(np.array(column.to_pylist(), np.str_), place)
    if not (types.is_integer(kind) or types.is_boolean(kind)):
        raise place.error("type", f"column {name} is {kind}; labels must be whole numbers or text")
    with place.reading():
        feature = Features.from_arrow_schema(table.schema).get(name)
    return encode_labels(column.to_numpy(), place, tuple(feature.names) if isinstance(feature, ClassLabel) else None)


def _image_column(table: Table, query: RowQuery) -> str | None:
    name, place = query.image_column, query.place
    found = [column for column in _names(table) if holds_images(_kind(table, column))]
    if name is not None:
        if _known(table, name, "image_column", query) not in found:
            raise place.error(
                "type", f"column {name} (dataset.image_column) is {_kind(table, name)}, not encoded images"
            )
        return name
    if query.form == "table" or (query.form is None and query.feature_columns is not None):
        return None
    if len(found) > 1:
        way = query.advice("image_column", found[0])
        raise place.error("column", f"columns {listed(found)} hold images; {way} or another")
    if query.form == "image" and not found:
        raise place.error("column", f"no column holds images; its columns are {listed(_names(table))}")
    return found[0] if found else None


def holds_images(kind: Any) -> bool:
    """Return whether values of an Arrow type are image files: {bytes, path} as datasets stores them, or bytes alone."""
    from pyarrow import types

    if types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _feature_columns(table: Table, label: str, query: RowQuery) -> tuple[str, ...]:
    from pyarrow import types

    def is_number(name: str) -> bool:
        kind = _kind(table, name)
        return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))

    place = query.place
    if query.feature_columns is None:
        found = tuple(name for name in _names(table) if name != label and is_number(name))
        if not found:
            columns = listed(_names(table))
            problem = f"no column holds images or numbers beside the label {label}; its columns are {columns}"
            raise place.error("column", problem)
        return found
    for name in query.feature_columns:
        if not is_number(_known(table, name, "feature_columns", query)):
            raise place.error("type", f"column {name} (dataset.feature_columns) is {_kind(table, name)}, not numbers")
        if name == label:
            raise place.error("column", f"column {name} is the label; leave it out of dataset.feature_columns")
    return query.feature_columns
