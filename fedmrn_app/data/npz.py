"""Labelled rows in one .npz file: x and y, and x_test and y_test where there is a test split."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.labels import encode_labels
from fedmrn_app.data.place import Place
from fedmrn_app.data.rows import OpenRows, RowQuery, Splits, check_table

KEYS = {"train": ("x", "y"), "test": ("x_test", "y_test")}
MAX_CHANNELS = 4
MAX_ID = 1 << 31


def npz_splits(path: Path, query: RowQuery) -> Splits:
    """Return the splits of a file; nothing in it is unpickled.

    Raises:
        DataError: it cannot be read, has neither x nor x_test, or has one of them without its labels.
    """
    names = list(_load(path, query.place))
    splits = {split: keys for split, keys in KEYS.items() if keys[0] in names}
    if not splits:
        has = ", ".join(names) or "none"
        raise query.place.error("array", f"has no array x; it has {has}, and must have x and y")
    for x, y in splits.values():
        if y not in names:
            raise query.place.error("array", f"has {x}, but no array {y}; it has {', '.join(names)}")
    return {split: partial(_open, path, keys, query) for split, keys in splits.items()}


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
    labels = encode_labels(y, place)
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        images = _channels_first(x, place)
        return OpenRows("image", labels, lambda rows: np.ascontiguousarray(images[rows]))
    if x.ndim == 2 and x.dtype.kind in "iu" and query.form != "table":
        return OpenRows("ids", labels, lambda rows: _ids(x, place)[rows])
    if x.ndim == 2 and x.dtype.kind in "fiub":
        return OpenRows("table", labels, lambda rows: check_table(x, place)[rows])
    raise place.error(
        "type",
        f"{keys[0]} is {x.dtype} of shape {x.shape}; images must be uint8 (n, height, width) or with channels, a table "
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


def _channels_first(x: NDArray[np.uint8], place: Place) -> NDArray[np.uint8]:
    """Return images (n, height, width) or (n, height, width, channels) as (n, channels, height, width)."""
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
