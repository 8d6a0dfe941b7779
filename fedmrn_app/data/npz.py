"""Labelled rows in one .npz file: x and y, Keras' x_train and y_train, or MedMNIST's train_images and train_labels."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.labels import Labels, describe_labels, encode_labels, encode_quantity, listed
from fedmrn_app.data.place import Place
from fedmrn_app.data.rows import Entry, Form, OpenRows, RowQuery, Splits, check_table, way_to_ignore
from fedmrn_app.data.samples import Rows
from fedmrn_app.data.splits import WORDS
from fedmrn_app.data.table_rows import group_entry, groups_of

INPUTS = ("x", "images", "data", "features", "inputs")
LABELS = ("y", "labels", "label", "targets", "target")
_LABEL_KINDS = {"U": "text", "S": "text", "f": "number"}
MAX_CHANNELS = 4
MAX_ID = 1 << 31


def npz_splits(path: Path, query: RowQuery) -> Splits:
    """Return the splits of a file; nothing in it is unpickled.

    Raises:
        DataError: it cannot be read, has no inputs, has some without their labels, or an array would not be used.
    """
    names, place = list(_load(path, query.place)), query.place
    splits: dict[str, tuple[str, str]] = {}
    for split in WORDS:
        x, y = (_called(split, words, names, place) for words in (INPUTS, LABELS))
        if x is None:
            continue
        if y is None:
            raise place.error("array", f"has {x}, but no array {x.replace('x', 'y')}; it has {', '.join(names)}")
        splits[split] = x, y
    if not splits:
        raise place.error("array", f"has no array x; it has {', '.join(names) or 'none'}, and must have x and y")
    used = {name for pair in splits.values() for name in pair} | {query.group_column} | set(query.ignore)
    if (left := [name for name in names if name not in used]) and not query.on_device:
        problem = f"array{'s' * (len(left) > 1)} {listed(left)} would not be used"
        raise place.error("unused", f"{problem}; {way_to_ignore(left)}")
    return {split: partial(_open, path, keys, query) for split, keys in splits.items()}


def _called(split: str, words: tuple[str, ...], names: list[str], place: Place) -> str | None:
    """Return the array of a split that has one of the words in its name; None where there is none."""
    allowed = {f"{word}_{part}" for word in words for part in WORDS[split]}
    allowed |= {f"{part}_{word}" for word in words for part in WORDS[split]}
    found = [name for name in names if name.lower() in allowed or (split == "train" and name.lower() in words)]
    if len(found) > 1:
        raise place.error("array", f"has {' and '.join(found)}, which may be the same; dataset.ignore=[NAME] decides")
    return found[0] if found else None


def _load(path: Path, place: Place, *keys: str) -> dict[str, NDArray[Any]]:
    """Read the named arrays, or return all names with empty arrays."""
    with place.reading("read as .npz"):  # a damaged header may ask for more memory than there is
        opened = np.load(path, allow_pickle=False)
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise ValueError("it is one array, not an .npz of several")
        with opened as file:
            try:
                return {key: file[key] for key in keys} if keys else dict.fromkeys(file.files, np.empty(0))
            except ValueError as error:
                if "pickle" in str(error):
                    raise place.error("pickle", "holds Python objects; store arrays of numbers or of text") from error
                raise


def _open(path: Path, keys: tuple[str, str], query: RowQuery) -> OpenRows:
    place = query.place
    arrays = _load(path, place, *keys)
    x, y = (arrays[key] for key in keys)
    if x.ndim < 2 or y.ndim < 1:
        raise place.error("shape", f"{keys[0]} has shape {x.shape}, {keys[1]} {y.shape}; both must have rows")
    if len(x) != len(y):
        raise place.error("shape", f"{keys[0]} has {len(x)} rows, {keys[1]} has {len(y)}; each row needs one label")
    labels = encode_quantity(y, place) if query.quantity else encode_labels(y, place)
    groups = _groups(path, len(x), keys[0], query)
    form = _form_of(x, keys[0], query)

    def inputs(rows: Rows) -> NDArray[Any]:
        if form == "image":
            return np.ascontiguousarray(_channels_first(x, place)[rows])
        return _ids(x, place)[rows] if form == "ids" else check_table(x, place)[rows]

    def entries() -> list[Entry]:
        kind = {"image": "image", "ids": "token ids", "table": "number"}[form]
        found = [
            Entry(keys[0], kind, "input", f"{x.dtype} of shape {x.shape}"),
            Entry(keys[1], _LABEL_KINDS.get(y.dtype.kind, "whole numbers"), "label", describe_labels(labels)),
        ]
        if groups is not None:
            found.append(group_entry(str(query.group_column), "array", groups))
        return [*found, *(Entry(name, "array", "not used", "dataset.ignore") for name in query.ignore)]

    return OpenRows(form, labels, inputs, groups=groups, entries=entries)


def _groups(path: Path, rows: int, x: str, query: RowQuery) -> Labels | None:
    """Return the groups of the training rows; other splits have none."""
    key, place = query.group_column, query.place
    if key is None or not (x.lower() in INPUTS or any(word in x.lower() for word in WORDS["train"])):
        return None
    if key not in (names := list(_load(path, place))):
        raise place.error("array", f"has no array {key} (dataset.group_column); it has {', '.join(names)}")
    values = _load(path, place, key)[key]
    if values.shape not in ((rows,), (rows, 1)):
        raise place.error("shape", f"{key} has shape {values.shape}; each of the {rows} rows needs one group")
    return groups_of(values.reshape(rows), key, place)


def _form_of(x: NDArray[Any], name: str, query: RowQuery) -> Form:
    """Return what an array holds.

    Raises:
        DataError: it may hold several things, of which `dataset.form` tells one, or nothing that can be read.
    """
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        return "image"
    if x.ndim == 2 and x.dtype.kind in "iu":
        if query.form is None:
            side = math.isqrt(x.shape[1])
            square = f" or images of {side}x{side} pixels (dataset.form=image)" if side**2 == x.shape[1] > 1 else ""
            raise query.place.error(
                "ambiguous",
                f"{name} holds whole numbers of shape {x.shape}; they may be a table (dataset.form=table), token ids "
                f"(dataset.form=ids){square}; set one",
            )
        return query.form
    if x.ndim == 2 and x.dtype.kind in "fb":
        return "table"
    raise query.place.error(
        "type",
        f"{name} is {x.dtype} of shape {x.shape}; images must be uint8 (n, height, width) or with channels, a table "
        "float (n, columns), text ids whole numbers (n, length)",
    )


def _ids(ids: NDArray[Any], place: Place) -> NDArray[np.int64]:
    for row, column in np.argwhere((ids < 0) | (ids >= MAX_ID))[:1]:
        raise place.error(
            "id",
            f"row {row} has the id {ids[row, column]}; ids count from 0 (for a table of whole numbers set "
            "dataset.form=table, or store them as float)",
        )
    if not ids.shape[1]:
        raise place.error("empty", "the rows of ids are empty")
    return np.asarray(ids, np.int64)


def _channels_first(x: NDArray[Any], place: Place) -> NDArray[np.uint8]:
    """Return images (n, height, width), (n, height, width, channels) or (n, side * side) as channels first."""
    if x.ndim == 2:
        side = math.isqrt(x.shape[1])
        if side**2 != x.shape[1] or x.min() < 0 or x.max() > 255:
            problem = f"rows of {x.shape[1]} numbers from {x.min()} to {x.max()} are no square images of 8 bits"
            raise place.error("shape", f"{problem}; store them as uint8 (n, height, width)")
        x = x.astype(np.uint8).reshape(-1, side, side)
    if 0 in x.shape[1:]:
        raise place.error("shape", f"images of shape {x.shape[1:]} have no pixels")
    if x.ndim == 3:
        return x[:, None]
    if x.shape[3] <= MAX_CHANNELS:
        return x.transpose(0, 3, 1, 2)
    if x.shape[1] <= MAX_CHANNELS:
        return x
    raise place.error(
        "shape",
        f"images of shape {x.shape[1:]} have no channels; the first or last axis must have 1 to {MAX_CHANNELS}",
    )
