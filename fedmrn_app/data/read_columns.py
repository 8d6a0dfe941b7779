"""Named columns -> rows of images or of a table, by the names that are said or found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.read_images import stack_images
from fedmrn_app.data.read_labels import Labels, encode_labels, listed, number_labels
from fedmrn_app.data.read_source import RowNumbers, Source, Wanted, check_table
from fedmrn_app.errors import DataError

LABEL_COLUMNS = ("label", "labels", "target", "class", "y")  # what it may be called where nothing is said


@dataclass(frozen=True)
class Columns:
    """One split.

    Attributes:
        schema: a `pyarrow.Schema`.
        classes: the names of the classes of ClassLabel columns.
        read: returns a column as a `pyarrow.ChunkedArray`.
    """

    schema: Any
    classes: dict[str, tuple[str, ...]]
    read: Callable[[str], Any]


def dataset_columns(rows: Any) -> Columns:
    """The columns of a `datasets.Dataset`."""
    return Columns(
        rows.features.arrow_schema,
        class_names(rows.features),
        lambda name: rows.select_columns([name]).with_format("arrow")[:].column(name),
    )


def class_names(features: Any) -> dict[str, tuple[str, ...]]:
    """The names of the classes of all ClassLabel columns of a `datasets.Features`."""
    return {name: tuple(f.names) for name, f in features.items() if type(f).__name__ == "ClassLabel"}


def columns_source(columns: Columns, wanted: Wanted) -> Source:
    """Rows of images or of a table, by the columns that are asked for or found.

    Raises:
        DataError: a column is not there, cannot be told from others, or does not hold what it should.
    """
    label = _label_column(columns, wanted)
    labels = _labels(columns, label, wanted.said)
    image = _image_column(columns, wanted)
    if image is not None:

        def images(rows: RowNumbers) -> NDArray[np.uint8]:
            return _images(columns.read(image), rows, image, wanted.said)

        return Source("image", labels, images)
    features = _feature_columns(columns, label, wanted)

    def table(rows: RowNumbers) -> NDArray[np.float64]:
        values = [np.asarray(columns.read(name).to_numpy(), np.float64) for name in features]
        return check_table(np.stack(values, 1), wanted.said, features)[rows]

    return Source("table", labels, table, features)


def _names(columns: Columns) -> list[str]:
    """All but the row numbers that pandas adds."""
    return [name for name in columns.schema.names if not name.startswith("__index_level_")]


def _known(columns: Columns, name: str, key: str, wanted: Wanted) -> str:
    if name not in columns.schema.names:
        raise DataError(
            f"{wanted.said}: has no column {name} (dataset.{key}); its columns are {listed(_names(columns))}; "
            f"{wanted.advice(key, '[NAME,...]' if key == 'feature_columns' else 'NAME')}"
        )
    return name


def _label_column(columns: Columns, wanted: Wanted) -> str:
    if wanted.label_column is not None:
        return _known(columns, wanted.label_column, "label_column", wanted)
    found = [name for name in _names(columns) if name.lower() in LABEL_COLUMNS]
    if len(found) != 1:
        which = f"several columns may be the label ({', '.join(found)})" if found else "no column is called label"
        raise DataError(
            f"{wanted.said}: {which}; its columns are {listed(_names(columns))}; {wanted.advice('label_column')}"
        )
    return found[0]


def _labels(columns: Columns, name: str, said: str) -> Labels:
    from pyarrow import types as kinds  # type: ignore[import-untyped]

    column, kind = columns.read(name), columns.schema.field(name).type
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise DataError(f"{said}: row {row} has no label in column {name}; leave it out")
    if kinds.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if str(kind) in ("string", "large_string", "string_view"):
        return encode_labels(np.array(column.to_pylist(), np.str_), said)
    if not (kinds.is_integer(kind) or kinds.is_boolean(kind)):
        raise DataError(f"{said}: column {name} is {kind}; labels must be whole numbers or text")
    labels = encode_labels(np.asarray(column.to_numpy()), said)
    return number_labels(labels.index, said, columns.classes[name]) if name in columns.classes else labels


def _image_column(columns: Columns, wanted: Wanted) -> str | None:
    found = [name for name in _names(columns) if _holds_images(columns.schema.field(name).type)]
    name = wanted.image_column
    if name is not None:
        if _known(columns, name, "image_column", wanted) not in found:
            kind = columns.schema.field(name).type
            raise DataError(f"{wanted.said}: column {name} (dataset.image_column) is {kind}, not encoded images")
        return name
    if wanted.form == "table" or (wanted.form is None and wanted.feature_columns is not None):
        return None
    if len(found) > 1:
        raise DataError(
            f"{wanted.said}: columns {listed(found)} hold images; {wanted.advice('image_column', found[0])} or another"
        )
    if wanted.form == "image" and not found:
        raise DataError(f"{wanted.said}: no column holds images; its columns are {listed(_names(columns))}")
    return found[0] if found else None


def _holds_images(kind: Any) -> bool:
    """Whether values are files of images: {bytes, path}, as datasets stores them, or bytes alone."""
    from pyarrow import types as kinds  # type: ignore[import-untyped]

    if kinds.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind))


def _images(column: Any, rows: RowNumbers, name: str, said: str) -> NDArray[np.uint8]:
    def one(row: int) -> tuple[str, Path | bytes]:
        value = column[row].as_py()
        if isinstance(value, dict):
            value = value["bytes"] if value["bytes"] is not None else Path(value.get("path") or "")
        return f"column {name} of row {row}", value if value is not None else b""

    return stack_images((one(int(row)) for row in rows), len(rows), said)


def _feature_columns(columns: Columns, label: str, wanted: Wanted) -> tuple[str, ...]:
    from pyarrow import types as kinds  # type: ignore[import-untyped]

    def is_number(name: str) -> bool:
        kind = columns.schema.field(name).type
        return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind))

    if wanted.feature_columns is None:
        found = tuple(name for name in _names(columns) if name != label and is_number(name))
        if not found:
            raise DataError(
                f"{wanted.said}: no column holds images or numbers beside the label {label}; its columns are "
                f"{listed(_names(columns))}"
            )
        return found
    for name in wanted.feature_columns:
        if not is_number(_known(columns, name, "feature_columns", wanted)):
            kind = columns.schema.field(name).type
            raise DataError(f"{wanted.said}: column {name} (dataset.feature_columns) is {kind}, not numbers")
        if name == label:
            raise DataError(f"{wanted.said}: column {name} is the label; leave it out of dataset.feature_columns")
    return wanted.feature_columns
