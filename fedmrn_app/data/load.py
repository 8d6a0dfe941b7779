"""Labelled rows, from a place on disk in any form, from the hub or from scikit-learn, read once into the cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.cache import Arrays, cached_arrays
from fedmrn_app.data.columns import SEVERAL
from fedmrn_app.data.digits import DIGITS_TEST_SIZE, read_digits
from fedmrn_app.data.hub import read_split
from fedmrn_app.data.image_folders import holds_metadata, image_folder_splits
from fedmrn_app.data.images import SUFFIXES, by
from fedmrn_app.data.labels import Labels, fit_labels
from fedmrn_app.data.npz import npz_files, npz_splits
from fedmrn_app.data.other_kinds import way_to_read
from fedmrn_app.data.place import Place
from fedmrn_app.data.rows import Entry, Form, OpenRows, RowQuery, Splits
from fedmrn_app.data.samples import Report, Rows, Split
from fedmrn_app.data.table_rows import NO_LABEL_COLUMN, columns_rows
from fedmrn_app.data.tables import FOLDER, open_tables, plain_folders
from fedmrn_app.data.text_files import TEXT_SUFFIXES
from fedmrn_app.data.visible import visible_files
from fedmrn_app.errors import DataError

FORMS = "a folder of images by class, parquet, CSV or JSONL files, a folder of datasets.save_to_disk, or .npz files"
READING = 5  # is raised where files are read in another way, so that the cache holds no rows of before
FOUND_KEYS = ("dataset.kinds", "dataset.feature_columns")  # which the training rows set for the other splits
FORM_WORDS: Mapping[Form, str] = {"image": "images", "table": "a table", "ids": "rows of ids"}
SHAPE_KEYS: Mapping[Form | None, tuple[str, ...]] = {  # configuration keys of the shape of a row
    "image": ("channels", "height", "width"),
    "table": ("features",),
    "ids": ("window",),
}


def open_rows(query: RowQuery) -> tuple[Split, OpenRows]:
    """Open the split whose rows are measured: the training split, or the test split where it is the only one.

    The rows of a training split include those that are cut off for testing.

    Raises:
        DataError: it cannot be read.
    """
    splits = open_splits(query)
    split: Split = "train" if "train" in splits else "test"
    with query.place.reading(errors=OSError):
        return split, splits[split]()


def load_rows(
    query: RowQuery, split: Split, names: tuple[str, ...] | None, classes: int, report: Report | None = None
) -> Arrays:
    """Return x, see `OpenRows.inputs`, and y of a split, mapped read-only; they are read on first use.

    y is int64 (n,), or float64 (n,) where the labels are a quantity. Rows that have groups also have `groups`, int64
    (n,).

    Args:
        query: where the rows are.
        split: `train`, `val` or `test`.
        names: the names of the classes; None where they are numbers.
        classes: the number of classes.
        report: receives a line if reading takes long.

    Raises:
        DataError: the rows cannot be read, are of another form, or have labels of other classes.
    """
    place = query.place
    stamp: object = (query.hub, query.subset, query.test_size)
    if place.on_disk:
        stamp = (READING, place.stamp(place.find(FORMS)))
    columns = replace(query, name="", place=replace(place, value=""), whose="", test_share=None)

    def read() -> dict[str, NDArray[Any]]:
        splits = open_splits(query)
        opened, rows = _open(query, splits, split)
        if report is not None and split == "test" and not {"test", "val"} & set(splits):
            report(f"{place}: no test split; {len(rows)} of the {len(opened.labels)} rows are cut off for testing")
        if query.form not in (None, opened.form):
            wanted = FORM_WORDS[query.form] if query.form else ""
            raise place.error("form", f"holds {FORM_WORDS[opened.form]}, {query.whose} are {wanted}")
        split_place = replace(place, part="" if split == "train" else f"{split} split: ")
        y: NDArray[Any]
        if opened.labels.values is not None:
            y = opened.labels.values
        else:
            y = fit_labels(opened.labels, names, classes, split_place, f"{query.whose} classes")
        groups = {} if opened.groups is None else {"groups": opened.groups.index[rows]}
        return {"x": opened.inputs(rows), "y": np.asarray(y[rows]), **groups}

    source = (stamp, split, query.test_share, columns, names, classes)
    return cached_arrays(query.name, source, read, report, private=place.on_disk)


def describe_rows(query: RowQuery) -> tuple[list[Entry], dict[str, int]]:
    """Return what becomes of each column, array or folder, and the number of rows of each split as it is stored.

    Raises:
        DataError: the rows cannot be read.
    """
    splits = open_splits(query)
    with query.place.reading(errors=OSError):
        opened = {split: rows() for split, rows in splits.items()}
    first = opened.get("train") or next(iter(opened.values()))
    entries = first.entries()
    if set(opened) == {"train"} and query.test_share is not None:
        entries = [_with_shared(entry, first, query.test_share) for entry in entries]
    for split, rows in opened.items():
        strangers = rows.strangers() if split != "train" else {}
        for number, entry in enumerate(entries):
            if count := strangers.get(entry.name):
                note = f"{entry.note}; {count:,} {split} rows with values that no training row has, read as none"
                entries[number] = replace(entry, note=note)
    return [*entries, *_unused_folders(query)], {split: len(rows.labels) for split, rows in opened.items()}


def _with_shared(entry: Entry, opened: OpenRows, test_share: float) -> Entry:
    """Return an entry that says how many rows cut off for testing are of a person or thing that is trained on too."""
    if entry.kind != SEVERAL or entry.use != "not used" or opened.value_numbers is None:
        return entry
    numbers, test = opened.value_numbers(entry.name), test_rows(opened.labels.index, test_share)
    count = int(np.isin(numbers[test], np.delete(numbers, test)).sum())
    shared = f"{count:,} of {len(test):,} test rows share one with training rows"
    return replace(entry, note=f"{entry.note}; {shared}; a test split of its own keeps it apart") if count else entry


def _unused_folders(query: RowQuery) -> list[Entry]:
    """Return what says that folders of tables may be groups, where nothing says what they are."""
    path = query.place.find(FORMS)
    if query.folders is not None or query.group_column is not None or not path.is_dir() or holds_metadata(path):
        return []
    names = [] if _only_images(path) else plain_folders(path)
    note = f"{len(names)} folders, such as {names[0]}; dataset.folders=groups makes them groups" if names else ""
    return [Entry("first level of folders", "folders", "not used", note)] if names else []


def check_shape(x: NDArray[Any], query: RowQuery, shape: tuple[int, ...], vocabulary: int | None = None) -> None:
    """Raise DataError, with both values, unless rows x (n, *shape) are as the configuration says."""
    stored, form, place = tuple(x.shape[1:]), query.form, query.place
    if stored != shape and not place.on_disk:  # there is no place to name, but a key
        keys = zip(SHAPE_KEYS[form], shape, stored, strict=True)
        key, value, allowed = next((f"dataset.{k}", v, a) for k, v, a in keys if v != a)
        raise DataError(f"{key}={value}: must be {allowed} for {query.name}", code="shape", key=key, value=value)
    if stored != shape and form == "image":
        raise place.error("shape", f"images are {by(stored)}, {query.whose} are {by(shape)}")
    if stored != shape:
        what = "columns" if form == "table" else "ids"
        raise place.error("shape", f"rows have {stored[0]} {what}, {query.whose} have {shape[0]}")
    if vocabulary is not None and x.max() >= vocabulary:
        raise place.error(
            "id",
            f"has the id {x.max()}, {query.whose} are 0 to {vocabulary - 1}; start the run with "
            f"dataset.vocabulary={x.max() + 1} or more",
        )


def test_rows(labels: NDArray[np.int64], share: float) -> Rows:
    """Draw a share of each class for testing, always the same rows, in ascending order.

    Of a class of two or more rows each side gets at least one; the only row of a class is for training.
    """
    order = np.random.default_rng(0).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    drawn = []
    for rows in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        count = min(max(round(share * len(rows)), 1), len(rows) - 1)
        drawn.append(rows[:count])
    return np.sort(np.concatenate(drawn))


def open_splits(query: RowQuery) -> Splits:
    """Return the splits, none of them read yet; errors in opening them name the split if it is not that of training.

    Raises:
        DataError: the place does not exist, or holds rows in no known form.
    """
    found = _splits(query)
    return {
        split: rows if split == "train" else partial(_named, query.place, split, rows, "train" in found)
        for split, rows in found.items()
    }


def _named(place: Place, split: str, rows: Callable[[], OpenRows], trained: bool) -> OpenRows:
    try:
        return rows()
    except DataError as error:
        problem = str(error).removeprefix(f"{place}: ")
        if trained and (problem.startswith(NO_LABEL_COLUMN) or " (dataset.label_column)" in problem):
            problem = "its rows have no label; move them away, or name the file of training rows in dataset.path"
        elif trained and (key := next((key for key in FOUND_KEYS if f" ({key})" in problem), None)):
            problem = f"{problem.replace(f' ({key})', '')}; its columns must be those of the training rows"
        raise replace(place, part=f"{split} split: ").error(error.code, problem) from error


def _splits(query: RowQuery) -> Splits:
    place = query.place
    if not place.on_disk and query.name == "digits":
        return {split: partial(_open_digits, split, query.test_size) for split in ("train", "test")}
    if not place.on_disk and query.hub is not None:
        return {split: partial(_open_hub, query, split) for split in ("train", "test")}
    if not place.on_disk:
        raise place.error(
            "missing",
            f"set dataset.path=PLACE, where its rows are: {FORMS}; or, where devices alone have rows, what they are, "
            "such as dataset.form=table dataset.features=20 dataset.classes=2 evaluation.on=clients",
        )
    path = place.find(FORMS)
    with place.reading(errors=OSError):
        if path.is_file() and path.suffix.lower() == ".npz":
            return npz_splits(path, query)
        if path.is_file() and path.suffix.lower() not in (".parquet", *TEXT_SUFFIXES):
            problem = f"is a file of a kind that is not read ('{path.suffix}'); it must be {FORMS}"
            raise place.error("kind", f"{problem}{way_to_read(path)}")
        if path.is_dir() and not any(path.iterdir()):
            raise place.error("empty", f"the folder is empty; it must hold {FORMS}")
        if path.is_dir() and holds_metadata(path):
            return image_folder_splits(path, query)
        if path.is_dir() and npz_files(path) and not _holds_other_rows(path):
            return npz_splits(path, query)
        by_folder = query.folders == "groups" and not query.on_device  # a device is one of the groups
        images = path.is_dir() and _only_images(path)  # tables beside images are not opened
        if not images and (tables := open_tables(path, place, by_folder=by_folder)):
            return {split: partial(_open_table, query, table) for split, table in tables.items()}
        return image_folder_splits(path, query)


def _holds_other_rows(folder: Path) -> bool:
    """Return whether a folder holds images or tables, beside which .npz files are no rows."""
    others = {*SUFFIXES, *TEXT_SUFFIXES, ".parquet", ".arrow"}
    return bool({path.suffix.lower() for path in visible_files(folder)} & others)


def _only_images(folder: Path) -> bool:
    """Return whether a folder holds images and no rows but in text files, which may be notes about the images."""
    kinds = {path.suffix.lower() for path in visible_files(folder)}
    return bool(kinds & set(SUFFIXES)) and not kinds & {".parquet", ".arrow"}


def stored_split(split: str, splits: Collection[str]) -> str | None:
    """Return the split that holds the rows of a split; without a test split the model is evaluated on `val`."""
    if split == "test" and "test" not in splits and "val" in splits:
        return "val"
    return split if split in splits else None


def _open(query: RowQuery, splits: Splits, split: Split) -> tuple[OpenRows, Rows]:
    """Open a split, and return the numbers of the rows that belong to it."""
    place, share = query.place, query.test_share
    if split == "train" and "train" not in splits:
        raise place.error("split", "has a test split only; training needs rows of its own")
    if split == "val" and "val" not in splits:
        raise place.error("split", "has no validation split; validation=0.1 holds out a tenth of the training rows")
    stored = stored_split(split, splits)
    whole = stored is not None and (split != "train" or share is None or bool({"test", "val"} & set(splits)))
    if not whole and share is None:
        raise place.error("split", "has no test split")
    with place.reading(errors=OSError):
        opened = splits[stored if whole and stored else "train"]()
    rows = np.arange(len(opened.labels))
    if whole or share is None:
        return opened, rows
    test = test_rows(opened.labels.index, share)
    if not len(test):
        raise place.error("split", "has no test split, and no class has two rows or more to cut one off; add one")
    return opened, test if split == "test" else np.delete(rows, test)


def _open_table(query: RowQuery, table: Callable[[], Any]) -> OpenRows:
    by_folder = query.folders == "groups" and not query.on_device
    return columns_rows(table(), replace(query, group_column=FOLDER) if by_folder else query)


def _open_hub(query: RowQuery, split: str) -> OpenRows:
    return columns_rows(read_split(query.place, query.hub, query.subset, split, FORMS), query)


def _open_digits(split: str, test_size: int | None) -> OpenRows:
    x, y = read_digits(split, test_size or DIGITS_TEST_SIZE)
    return OpenRows("image", Labels(y), lambda rows: x[rows])
