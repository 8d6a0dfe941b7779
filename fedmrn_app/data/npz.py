"""Labelled rows in .npz files: x and y, Keras' x_train and y_train, or MedMNIST's train_images and train_labels.

A folder may have a file for each split, and with `dataset.folders=groups` a folder of such files for each group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.labels import Labels, describe_labels, encode_labels, encode_quantity, listed
from fedmrn_app.data.place import Place
from fedmrn_app.data.rows import Entry, Form, OpenRows, RowQuery, Splits, check_table, way_to_ignore
from fedmrn_app.data.samples import Rows
from fedmrn_app.data.splits import WORDS, split_of_file
from fedmrn_app.data.table_rows import group_entry, groups_of
from fedmrn_app.data.visible import visible_files

INPUTS = ("x", "images", "data", "features", "inputs")
LABELS = ("y", "labels", "label", "targets", "target")
_LABEL_KINDS = {"U": "text", "S": "text", "f": "number"}
MAX_CHANNELS = 4
MAX_ID = 1 << 31


SUFFIX = ".npz"


@dataclass(frozen=True)
class Part:
    """The rows of one file that belong to a split; `x` and `y` are the names of its arrays."""

    file: Path
    x: str
    y: str


def npz_splits(path: Path, query: RowQuery) -> Splits:
    """Return the splits of a file, or of the files in a folder; nothing in them is unpickled.

    Raises:
        DataError: a file cannot be read, has no inputs, has some without their labels, or an array would not be used;
            or a folder holds files whose split or group is not known.
    """
    if path.is_file():
        return {split: partial(_open, [part], query) for split, part in _parts_of(path, query).items()}
    files, place, by_group = npz_files(path), query.place, query.folders == "groups" and not query.on_device
    found: dict[str, list[Part]] = {}
    for file in files:
        inside, named = file.relative_to(path), split_of_file(file.relative_to(path).as_posix())
        if by_group and file.parent == path:
            problem = f"{file.name} is in no folder; dataset.folders=groups needs one for each group"
            raise place.error("split", problem)
        if not by_group and len(inside.parts) > 1 and split_of_file(inside.parts[0] + "/") is None:
            problem = f"{inside} may be of a site; dataset.folders=groups takes the first level of folders as groups"
            raise place.error("ambiguous", problem)
        parts = _parts_of(file, query)
        if named and set(parts) != {"train"}:
            problem = f"{inside} names the split {named}, and holds arrays of {' and '.join(parts)}; call them x and y"
            raise place.error("split", problem)
        for split, part in parts.items():
            found.setdefault(named or split, []).append(part)
    if not by_group and len(files) > 1 and (one := next((f for f in files if not split_of_file(f.name)), None)):
        problem = f"{one.name} names no split, beside {len(files) - 1} other .npz files"
        raise place.error("split", f"{problem}; name one file, or call them train.npz, val.npz and test.npz")
    return {split: partial(_open, parts, query, path if by_group else None) for split, parts in found.items()}


def npz_files(folder: Path) -> list[Path]:
    """Return the .npz files in a folder and below it, in the order of their paths."""
    files = (file for file in visible_files(folder) if file.suffix.lower() == SUFFIX)
    return sorted(file for file in files if not file.name.startswith("_"))


def _parts_of(path: Path, query: RowQuery) -> dict[str, Part]:
    """Return the rows of each split of a file."""
    names, place = list(_load(path, query.place)), query.place
    splits: dict[str, Part] = {}
    for split in WORDS:
        x, y = (_called(split, words, names, place) for words in (INPUTS, LABELS))
        if x is None:
            continue
        if y is None:
            raise place.error("array", f"has {x}, but no array {x.replace('x', 'y')}; it has {', '.join(names)}")
        splits[split] = Part(path, x, y)
    if not splits:
        raise place.error("array", f"has no array x; it has {', '.join(names) or 'none'}, and must have x and y")
    used = {name for part in splits.values() for name in (part.x, part.y)} | {query.group_column} | set(query.ignore)
    if (left := [name for name in names if name not in used]) and not query.on_device:
        problem = f"array{'s' * (len(left) > 1)} {listed(left)} would not be used"
        groups = f"; dataset.group_column={left[0]} takes it as groups" if len(left) == 1 else ""
        raise place.error("unused", f"{problem}; {way_to_ignore(left)}{groups}")
    return splits


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


def _open(parts: Sequence[Part], query: RowQuery, groups_in: Path | None = None) -> OpenRows:
    """Open the rows of one or several files; the folders in `groups_in` are their groups."""
    place, first = query.place, parts[0]
    read = [_arrays(part, place) for part in parts]
    for part, (one, _) in zip(parts, read, strict=True):
        if (one.shape[1:], one.dtype) != (read[0][0].shape[1:], read[0][0].dtype):
            what = f"rows of {one.dtype} {one.shape[1:]} in {part.file}"
            raise place.error("shape", f"{what}, and of {read[0][0].dtype} {read[0][0].shape[1:]} in {first.file}")
    x, y = (arrays[0] if len(parts) == 1 else np.concatenate(arrays) for arrays in zip(*read, strict=True))
    labels = encode_quantity(y, place) if query.quantity else encode_labels(y, place)
    if groups_in is None:
        groups, level = _groups(first.file, len(x), first.x, query), (str(query.group_column), "array")
    else:
        folders = [part.file.relative_to(groups_in).parts[0] for part in parts]
        names = np.repeat(folders, [len(one) for one, _ in read])
        groups, level = groups_of(names, "", place), ("first level of folders", "folders")
    form = _form_of(x, first.x, query)

    def inputs(rows: Rows) -> NDArray[Any]:
        if form == "image":
            return np.ascontiguousarray(_channels_first(x, place)[rows])
        return _ids(x, place)[rows] if form == "ids" else check_table(x, place)[rows]

    def entries() -> list[Entry]:
        kind = {"image": "image", "ids": "token ids", "table": "number"}[form]
        files = f", in {len(parts)} files" if len(parts) > 1 else ""
        found = [
            Entry(first.x, kind, "input", f"{x.dtype} of shape {x.shape}{files}"),
            Entry(first.y, _LABEL_KINDS.get(y.dtype.kind, "whole numbers"), "label", describe_labels(labels)),
        ]
        if groups is not None:
            found.append(group_entry(*level, groups))
        return [*found, *(Entry(name, "array", "not used", "dataset.ignore") for name in query.ignore)]

    return OpenRows(form, labels, inputs, groups=groups, entries=entries)


def _arrays(part: Part, place: Place) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the inputs and the labels of a part, with as many rows."""
    arrays = _load(part.file, place, part.x, part.y)
    x, y = arrays[part.x], arrays[part.y]
    if x.ndim < 2 or y.ndim < 1:
        raise place.error("shape", f"{part.x} has shape {x.shape}, {part.y} {y.shape}; both must have rows")
    if len(x) != len(y):
        raise place.error("shape", f"{part.x} has {len(x)} rows, {part.y} has {len(y)}; each row needs one label")
    return x, y


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
    ways = ""
    if x.ndim > 2 and x.dtype.kind in "fb":
        ways = f"; {name}.reshape(len({name}), -1) is a table, which a model of yours may shape again"
        if x.ndim < 5:
            ways += f", and (255 * {name}).astype('uint8') images where values are from 0 to 1"
    raise query.place.error(
        "type",
        f"{name} is {x.dtype} of shape {x.shape}; images must be uint8 (n, height, width) or with channels, a table "
        f"float (n, columns), text ids whole numbers (n, length){ways}",
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
