"""A place on disk -> the rows of a split, whatever form they lie there in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.cache import file_stamp
from fedmrn_app.data.read_images import image_folder_splits
from fedmrn_app.data.read_npz import npz_splits
from fedmrn_app.data.read_parquet import SAVED_FILES, parquet_splits, saved_splits
from fedmrn_app.data.read_source import RowNumbers, Source, Splits, Wanted
from fedmrn_app.errors import DataError

FORMS = "a folder of images by class, parquet files, a folder of datasets.save_to_disk, or an .npz file"


def find_place(path: str, key: str) -> Path:
    """The folder or file that a path names, absolute.

    Raises:
        DataError: there is none, or its name cannot be one.
    """
    try:
        place = Path(path).expanduser().resolve()
        if path and place.exists():
            return place
        raise DataError(f"{key}={path}: no such folder or file; it must be {FORMS}")
    except (OSError, ValueError, RuntimeError) as error:  # no permission, a null byte, ~ of nobody
        raise DataError(f"{key}={path}: cannot be opened ({error})") from error


def stamp_place(path: str, key: str) -> object:
    """What changes when the files at a place do.

    Raises:
        DataError: see `find_place`.
    """
    place = find_place(path, key)
    try:
        return file_stamp(place)
    except OSError as error:
        raise _unreadable(f"{key}={path}", error) from error


def place_splits(place: Path, wanted: Wanted) -> Splits:
    """Tell what lies at a place by its names, and return its splits; rows that are not split are `train`.

    Raises:
        DataError: it is empty or of no known kind, or see the readers.
    """
    try:
        if place.is_file():
            if place.suffix.lower() == ".npz":
                return npz_splits(place, wanted)
            if place.suffix.lower() == ".parquet":
                return parquet_splits(place, wanted)
            raise DataError(f"{wanted.said}: is a file of an unknown kind ('{place.suffix}'); it must be {FORMS}")
        if any((place / name).is_file() for name in SAVED_FILES):
            return saved_splits(place, wanted)
        if not any(place.iterdir()):
            raise DataError(f"{wanted.said}: the folder is empty; it must hold {FORMS}")
        if next(place.rglob("*.parquet"), None) is not None:
            return parquet_splits(place, wanted)
        return image_folder_splits(place, wanted)
    except OSError as error:
        raise _unreadable(wanted.said, error) from error


def open_split(splits: Splits, split: str, said: str, test_share: float | None) -> tuple[Source, RowNumbers]:
    """Open a split, and say which of its rows belong to it.

    Args:
        splits: of the place.
        split: `train` or `test`.
        said: how errors begin.
        test_share: what to cut off for testing where there is no test split; None to cut nothing.

    Raises:
        DataError: there is no such split.
    """
    if split == "train" and "train" not in splits:
        raise DataError(f"{said}: has a test split only; training needs rows of its own")
    if split in splits and ("test" in splits or test_share is None):
        source = _open(splits, split, said)
        return source, np.arange(len(source.labels))
    if test_share is None:
        raise DataError(f"{said}: has no test split")
    source = _open(splits, "train", said)
    test = test_rows(source.labels.index, test_share)
    if not len(test):
        raise DataError(f"{said}: has no test split, and no class has two rows or more to cut one off; add one")
    rows = np.arange(len(source.labels))
    return source, test if split == "test" else np.delete(rows, test)


def _open(splits: Splits, split: str, said: str) -> Source:
    try:
        return splits[split]()
    except OSError as error:
        raise _unreadable(said, error) from error


def _unreadable(said: str, error: OSError) -> DataError:
    return DataError(f"{said}: cannot be read ({error.strerror or error})")


def test_rows(labels: NDArray[np.int64], share: float) -> RowNumbers:
    """Draw the same share of each class, always the same one, in ascending order.

    A class of two rows or more has one at least on either side; the only row of a class is for training.
    """
    order = np.random.default_rng(0).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    drawn = []
    for rows in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        count = min(max(round(share * len(rows)), 1), len(rows) - 1)
        drawn.append(rows[:count])
    return np.sort(np.concatenate(drawn))
