"""Rows in one .npz file: x and y, and x_test and y_test where there is a test split."""

from __future__ import annotations

import pickle
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.read_labels import encode_labels
from fedmrn_app.data.read_source import Source, Splits, Wanted, check_table
from fedmrn_app.errors import DataError

KEYS = {"train": ("x", "y"), "test": ("x_test", "y_test")}
MOST_CHANNELS = 4
BROKEN = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, pickle.UnpicklingError)


def npz_splits(path: Path, wanted: Wanted) -> Splits:
    """The splits of a file; nothing in it is unpickled.

    Raises:
        DataError: it cannot be read, or has neither x nor x_test, or one of them without its labels.
    """
    names = list(_load(path, wanted.said))
    splits = {split: keys for split, keys in KEYS.items() if keys[0] in names}
    if not splits:
        raise DataError(f"{wanted.said}: has no array x; it has {', '.join(names) or 'none'}, and must have x and y")
    for x, y in splits.values():
        if y not in names:
            raise DataError(f"{wanted.said}: has {x}, but no array {y}; it has {', '.join(names)}")

    def opener(keys: tuple[str, str]) -> Callable[[], Source]:
        return lambda: _open(path, keys, wanted)

    return {split: opener(keys) for split, keys in splits.items()}


def _load(path: Path, said: str, *keys: str) -> dict[str, NDArray[Any]]:
    """The named arrays, or all names with empty ones."""
    try:
        opened = np.load(path, allow_pickle=False)
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise ValueError("it is one array, not an .npz of several")
        with opened as file:
            return {key: file[key] for key in keys} if keys else dict.fromkeys(file.files, np.empty(0))
    except BROKEN as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if "pickle" in reason:
            reason = "it holds Python objects; store arrays of numbers or of text"
        raise DataError(f"{said}: cannot be read as .npz: {reason}") from error


def _open(path: Path, keys: tuple[str, str], wanted: Wanted) -> Source:
    said = wanted.said
    arrays = _load(path, said, *keys)
    x, y = (arrays[key] for key in keys)
    if x.ndim < 2 or y.ndim < 1:
        raise DataError(f"{said}: {keys[0]} has the shape {x.shape}, {keys[1]} {y.shape}; both must have rows")
    if len(x) != len(y):
        raise DataError(f"{said}: {keys[0]} has {len(x)} rows, {keys[1]} has {len(y)}; each row needs one label")
    labels = encode_labels(y, said)
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        images = _channels_first(x, said)
        return Source("image", labels, lambda rows: np.ascontiguousarray(images[rows]))
    if x.ndim == 2 and x.dtype.kind in "iu" and wanted.form != "table":
        return Source("ids", labels, lambda rows: _ids(x, said)[rows])
    if x.ndim == 2 and x.dtype.kind in "fiub":
        return Source("table", labels, lambda rows: check_table(x, said)[rows])
    raise DataError(
        f"{said}: {keys[0]} is {x.dtype} of the shape {x.shape}; images must be uint8 (n, height, width) or with "
        "channels, a table float (n, columns), text ids whole numbers (n, length)"
    )


def _ids(ids: NDArray[Any], said: str) -> NDArray[np.int64]:
    for row, place in np.argwhere((ids < 0) | (ids >= 1 << 31))[:1]:
        raise DataError(
            f"{said}: row {row} has the id {ids[row, place]}; ids count from 0 (whole numbers that are no ids but a "
            "table: say dataset.form=table, or store them as float)"
        )
    if not ids.shape[1]:
        raise DataError(f"{said}: the rows of ids are empty")
    return np.asarray(ids, np.int64)


def _channels_first(x: NDArray[np.uint8], said: str) -> NDArray[np.uint8]:
    """Images (n, height, width), (n, height, width, channels) or (n, channels, height, width) as the last of these."""
    if 0 in x.shape[1:]:
        raise DataError(f"{said}: images of the shape {x.shape[1:]} have no pixels")
    if x.ndim == 3:
        return x[:, None]
    if x.shape[3] <= MOST_CHANNELS:
        return x.transpose(0, 3, 1, 2)
    if x.shape[1] <= MOST_CHANNELS:
        return x
    raise DataError(
        f"{said}: images of the shape {x.shape[1:]} have no axis of channels; the first or last must be 1 to "
        f"{MOST_CHANNELS} long"
    )
