"""Labelled rows of a table: its columns as label, group and inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.columns import (
    COMMA_WAY,
    COMMAS,
    RECOGNIZED,
    Found,
    Plan,
    Table,
    check_names,
    column_names,
    comma_number,
    entries_of,
    is_text,
    kind_of_type,
    known_column,
    look_at,
    plan_columns,
    read_column,
    refuse_unused,
    value_numbers,
    whole,
)
from fedmrn_app.data.copies import refuse_copies
from fedmrn_app.data.features import Features, find_categories, numbers_of, texts_of
from fedmrn_app.data.images import ImageForm, stack_images
from fedmrn_app.data.labels import Labels, alike, decimals, describe_labels, encode_labels, encode_quantity, listed
from fedmrn_app.data.place import Place
from fedmrn_app.data.rows import Entry, OpenRows, RowQuery
from fedmrn_app.data.samples import Rows
from fedmrn_app.data.tables import holds_images
from fedmrn_app.data.texts import VOCABULARY, cut_off, encode_texts
from fedmrn_app.data.words import LABEL_COLUMNS
from fedmrn_app.errors import DataError, needs_extra

NO_LABEL_COLUMN = "no column is called label"


def columns_rows(table: Table, query: RowQuery) -> OpenRows:
    """Open rows of images, of a table or of texts, by the columns that are named or found.

    Raises:
        DataError: a column is missing, is not the only candidate, does not hold what it should, or would not be used.
    """
    label = _label_column(table, query)
    labels = _labels(table, label, query)
    used = {label: Entry(label, _column_kind(table, label), "label", describe_labels(labels))}
    groups = None
    if query.group_column is not None:
        known_column(table, query.group_column, "group_column", query)
        groups = read_groups(read_column(table, query.group_column, query.place), query)
        used[query.group_column] = group_entry(query.group_column, _column_kind(table, query.group_column), groups)
    image = _image_column(table, query)
    if image is not None:
        return _image_rows(table, image, labels, groups, used, query)
    if query.form == "image":
        raise query.place.error("column", f"no column holds images; its columns are {listed(column_names(table))}")
    plan = plan_columns(table, (label, *([query.group_column] if query.group_column else [])), query)
    if query.feature_columns is None and not plan.text:
        refuse_copies(table, list(plan.kinds.items()), labels, query)
    return (_text_rows if plan.text else _number_rows)(table, plan, labels, groups, used, query)


def _image_rows(
    table: Table, image: str, labels: Labels, groups: Labels | None, used: dict[str, Entry], query: RowQuery
) -> OpenRows:
    place = query.place
    check_names(table, query)
    if query.image_column is None and not query.on_device:
        left = {name: _seen(table, name, place) for name in table.schema.names if name not in (image, *used)}
        wrong = {name: one for name, one in left.items() if one.kind not in RECOGNIZED and name not in query.ignore}
        refuse_unused(wrong, query, " beside images")

    def images(rows: Rows) -> NDArray[np.uint8]:
        column = read_column(table, image, place)
        cells = ((f"column {image} of row {row}", column[int(row)].as_py()) for row in rows)
        return stack_images(cells, len(rows), place, ImageForm.of(query))

    used[image] = Entry(image, "image", "input")
    return OpenRows("image", labels, images, groups=groups, entries=lambda: entries_of(table, used, query))


def _seen(table: Table, name: str, place: Place) -> Found:
    kind = table.schema.field(name).type
    return Found("image") if holds_images(kind) else look_at(table, name, place)


def _number_rows(
    table: Table, plan: Plan, labels: Labels, groups: Labels | None, used: dict[str, Entry], query: RowQuery
) -> OpenRows:
    categories = find_categories(table, plan.kinds, query.categories or {}, query.place)
    features = Features(table, query.place, plan.kinds, categories)

    def entries() -> list[Entry]:
        missing = features.unknown()
        for name, kind in plan.kinds.items():
            notes = []
            if kind == "category":
                notes.append(f"{len(categories[name])} values: {listed(categories[name])}")
            if name in missing:
                notes.append(f"{missing[name]:,} rows without a value")
            used[name] = Entry(name, kind, "input", "; ".join(notes))
        return entries_of(table, used, query)

    return OpenRows(
        "table",
        labels,
        features.read,
        plan.features,
        kinds=plan.kinds,
        categories=categories,
        groups=groups,
        widths=features.widths,
        strangers=features.strangers,
        entries=entries,
        value_numbers=lambda name: value_numbers(read_column(table, name, query.place)),
    )


def _text_rows(
    table: Table, plan: Plan, labels: Labels, groups: Labels | None, used: dict[str, Entry], query: RowQuery
) -> OpenRows:
    (name,) = plan.features
    vocabulary = query.vocabulary or VOCABULARY[query.tokenizer]

    def texts() -> list[str | None]:
        texts: list[str | None] = read_column(table, name, query.place).to_pylist()
        return texts

    def ids(rows: Rows) -> NDArray[np.int64]:
        return encode_texts(texts(), query.tokenizer, vocabulary, query.window)[rows]

    def entries() -> list[Entry]:
        window = query.window or encode_texts(texts(), query.tokenizer, vocabulary, None).shape[1]
        long = cut_off(texts(), query.tokenizer, window)
        note = f"the last {window} {query.tokenizer} of each" + (f", {long:,} texts are longer" if long else "")
        empty = sum(not (text or "").strip() for text in texts())
        note += f", {empty:,} rows have no text" if empty else ""
        used[name] = Entry(name, "text", "input", note)
        return entries_of(table, used, query)

    return OpenRows("ids", labels, ids, groups=groups, entries=entries, text_column=name)


def read_groups(column: Any, query: RowQuery) -> Labels:
    """Return the group of each row from a column of texts or whole numbers.

    Raises:
        DataError: a row has no group.
    """
    key, place = query.group_column, query.place
    if column.null_count:
        raise _no_group(column.is_null().to_pylist().index(True), str(key), place)
    return groups_of(texts_of(column) if _texts(column) else column.to_numpy(), str(key), place)


def groups_of(values: NDArray[Any], key: str, place: Place) -> Labels:
    """Return the group of each row from texts or whole numbers (n,), in the order of their values.

    Raises:
        DataError: they are other values, or a text is blank.
    """
    if values.dtype.kind not in "USiub":
        problem = f"column {key} (dataset.group_column) is {values.dtype}; groups must be whole numbers or text"
        raise place.error("type", problem)
    found, index = np.unique(values, return_inverse=True)
    names = tuple(map(str, found))
    blank = [number for number, name in enumerate(names) if not name.strip()]
    if blank:
        raise _no_group(int(np.flatnonzero(np.isin(index, blank))[0]), key, place)
    return Labels(index.astype(np.int64), names)


def _no_group(row: int, key: str, place: Place) -> DataError:
    return place.error("group", f"row {row} has no group in column {key} (dataset.group_column); fill it in")


def group_entry(name: str, kind: str, groups: Labels) -> Entry:
    """Return what becomes of the groups."""
    sizes = np.bincount(groups.index)
    sizes = sizes[sizes > 0]
    rows = f"{sizes.max():,} rows"
    if sizes.min() < sizes.max():
        rows = f"{sizes.min():,} to {rows}, {int(np.median(sizes)):,} in the median"
    note = f"{len(sizes)} groups of {rows}"
    if pair := alike(groups.names or (), letters=True):
        note += f"; {pair[0]!r} and {pair[1]!r} are two of them, which differ in spaces, capitals or leading zeros only"
        note += "; write them alike where they are one"
    return Entry(name, kind, "group", note)


def _column_kind(table: Table, name: str) -> str:
    """Return what a column of labels or groups holds."""
    return {"whole number": "whole numbers"}.get(kind := kind_of_type(table.schema.field(name).type), kind)


def _texts(column: Any) -> bool:
    kind = column.type
    return is_text(getattr(kind, "value_type", kind))


def _label_column(table: Table, query: RowQuery) -> str:
    if query.label_column is not None:
        return known_column(table, query.label_column, "label_column", query)
    found = [name for name in column_names(table) if name.lower() in LABEL_COLUMNS and name != query.group_column]
    found = [name for name in found if name not in query.ignore]
    if any(name.lower() == "x" for name in column_names(table)):
        found = [name for name in found if name.lower() != "y"]  # beside an x it is a coordinate
    if len(found) == 1:
        return found[0]
    which = f"several columns may be the label ({', '.join(found)})" if found else NO_LABEL_COLUMN
    columns = listed(column_names(table))
    raise query.place.error("column", f"{which}; its columns are {columns}; {query.advice('label_column')}")


def _labels(table: Table, name: str, query: RowQuery) -> Labels:
    place = query.place
    with needs_extra("data", place.key, place.value):
        from datasets import ClassLabel, Features
        from pyarrow import types

    column = read_column(table, name, place)
    kind = column.type
    if not len(column):
        raise place.error("empty", "has no rows")
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise place.error("label", f"row {row} has no label in column {name}; leave it out")
    if query.quantity and not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)):
        problem = f"column {name} is {kind}; with task=regression the label must be a number"
        commas = comma_number(column) if is_text(kind) else None
        way = f" ({COMMAS}, such as {commas}); {COMMA_WAY}" if commas else ""
        raise place.error("type", f"{problem}{way}")
    if query.quantity:
        return encode_quantity(numbers_of(column, place), place)
    if is_text(kind):
        return encode_labels(np.array(column.to_pylist(), np.str_), place)
    if not (types.is_integer(kind) or types.is_boolean(kind) or whole(column)):
        raise place.error("type", decimals(f"column {name} is {kind}", place))
    with place.reading():
        feature = Features.from_arrow_schema(table.schema).get(name)
    return encode_labels(column.to_numpy(), place, tuple(feature.names) if isinstance(feature, ClassLabel) else None)


def _image_column(table: Table, query: RowQuery) -> str | None:
    name, place = query.image_column, query.place
    found = [column for column in column_names(table) if holds_images(table.schema.field(column).type)]
    if name is not None:
        if known_column(table, name, "image_column", query) not in found:
            kind = table.schema.field(name).type
            raise place.error("type", f"column {name} (dataset.image_column) is {kind}, not encoded images")
        return name
    others = query.text_column is not None or (query.form is None and query.feature_columns is not None)
    if query.form in ("table", "ids") or others:
        return None
    found = [column for column in found if column not in query.ignore]
    if len(found) > 1:
        way = query.advice("image_column", found[0])
        raise place.error("column", f"columns {listed(found)} hold images; {way} or another")
    return found[0] if found else None
