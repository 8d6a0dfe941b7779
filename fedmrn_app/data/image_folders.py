"""Folders of images: one folder for each class, also below a folder for each group, or a table of files and labels."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.class_folders import refuse_links, refuse_other_names, refuse_unread
from fedmrn_app.data.images import SUFFIXES, ImageForm, stack_images
from fedmrn_app.data.label_files import label_file
from fedmrn_app.data.labels import Labels, listed
from fedmrn_app.data.other_kinds import first_other, way_to_read
from fedmrn_app.data.place import Place
from fedmrn_app.data.rows import Entry, OpenRows, RowQuery, Splits, way_to_ignore
from fedmrn_app.data.samples import Rows
from fedmrn_app.data.splits import WORDS, split_of_name
from fedmrn_app.data.table_rows import columns_rows, group_entry
from fedmrn_app.data.text_files import read_text_files
from fedmrn_app.data.visible import HIDDEN, visible_files
from fedmrn_app.errors import needs_extra

METADATA = "metadata.csv"  # beside images, with their file names, as the hub's imagefolder has it
FILE_COLUMN = "file_name"


def image_folder_splits(folder: Path, query: RowQuery) -> Splits:
    """Return the splits of `train/CLASS/`, `val/CLASS/` and `test/CLASS/`, or of `CLASS/` alone.

    Instead of the folders of classes there may be a `metadata.csv`, and with `dataset.folders=groups` there is a folder
    of each group above them.

    A folder of sites, each with splits of its own, has the sites as groups with `dataset.folders=groups` too.

    Raises:
        DataError: a folder beside the splits would not be used, or the folders may be sites.
    """
    found: dict[str, Path] = {}
    for place in _folders(folder):
        if (split := split_of_name(place.name)) and _holds_rows(place):
            found.setdefault(split, place)
    if not {"train", "test"} & set(found):
        if sites := _sites(folder, query):
            return {split: partial(_open_groups, folder, query, split) for split in WORDS if split in sites}
        found = {"train": folder}
    elif not query.on_device:
        left = [p.name for p in _folders(folder) if p not in found.values() and p.name not in query.ignore]
        if left:
            splits = ", ".join(place.name for place in found.values())
            problem = f"{listed(left)} beside {splits} would not be used"
            raise query.place.error("unused", f"{problem}; {way_to_ignore(left)}")
    return {split: partial(_open_folder, place, query) for split, place in found.items()}


def holds_metadata(folder: Path) -> bool:
    """Return whether images lie in a folder, or in its splits, with a table of their labels."""
    return any((place / METADATA).is_file() for place in (folder, *_folders(folder)))


def _holds_rows(folder: Path) -> bool:
    """Return whether a folder called `train` is a split, and not the pictures of a class of trains."""
    return (folder / METADATA).is_file() or (bool(_folders(folder)) and not any(map(_is_image, folder.iterdir())))


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(HIDDEN))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def _open_folder(folder: Path, query: RowQuery) -> OpenRows:
    """Open a folder of classes or of groups, each in alphabetical order, and so are the images in them."""
    if (folder / METADATA).is_file():
        return _open_metadata(folder, query)
    if query.folders == "groups" and not query.on_device:  # a device is one of the groups
        return _open_groups(folder, query)
    classes = [one for one in _folders(folder) if one.name not in query.ignore]
    if not classes:
        if other := first_other(folder.iterdir()):
            problem = f"holds {other.name}, of a kind that is not read, and no folder for each class"
            raise query.place.error("kind", f"{problem}{way_to_read(other)}")
        raise query.place.error(
            "empty", f"{folder} has no folder for each class, such as cat/ and dog/ with images each"
        )
    refuse_links(classes, query)
    if query.folders is None and not query.on_device:
        refuse_other_names(classes, query)
    files, index = _collect(classes, {one.name: number for number, one in enumerate(classes)}, query.place)
    if query.folders is None and not query.on_device:
        _refuse_levels(folder, classes, query.place)
        _refuse_no_classes(folder, classes, files, query)
    return _rows(folder, files, Labels(index, tuple(one.name for one in classes)), None, query)


def _sites(folder: Path, query: RowQuery) -> set[str]:
    """Return the splits that the folders in a folder have below them, none where they are no sites.

    Raises:
        DataError: it is not said that they are sites, or one of them has no splits.
    """
    if query.folders == "classes" or query.on_device:
        return set()
    sites = [one for one in _folders(folder) if one.name not in query.ignore]
    splits = {one.name: {split for split in WORDS if _split_of(one, split)} for one in sites}
    found = [name for name in splits if {"train", "test"} & splits[name]]
    if not found:
        return set()
    if query.folders is None:
        below = " and ".join(f"{split}/" for split in WORDS if split in splits[found[0]])
        raise query.place.error(
            "ambiguous",
            f"{found[0]}/ holds {below}; dataset.folders=groups takes the first level as groups, such as sites, each "
            "with its own splits",
        )
    if other := next((name for name in splits if name not in found), None):
        problem = f"{other}/ has no train/ and test/, as {found[0]}/ has"
        raise query.place.error("unused", f"{problem}; {way_to_ignore([other])}")
    return set.union(*splits.values())


def _split_of(site: Path, split: str) -> Path | None:
    """Return the folder of a site's split; None where it has none."""
    return next((one for one in _folders(site) if split_of_name(one.name) == split and _holds_rows(one)), None)


def _open_groups(folder: Path, query: RowQuery, split: str | None = None) -> OpenRows:
    """Open a folder of groups, each with a folder for each class, or with such folders in each of its splits."""
    groups = [one for one in _folders(folder) if one.name not in query.ignore]
    if split is not None:
        groups = [found for one in groups if (found := _split_of(one, split))]
    refuse_links(groups, query)
    names = sorted({one.name for group in groups for one in _folders(group)})
    number = {name: place for place, name in enumerate(names)}
    files: list[Path] = []
    labels, owners = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for owner, group in enumerate(groups):
        if loose := next(filter(_is_image, group.iterdir()), None):
            raise query.place.error("kind", f"{loose} is in no folder of a class; dataset.folders=groups needs one")
        images, index = _collect(_folders(group), number, query.place)
        files += images
        labels.append(index)
        owners.append(np.full(len(images), owner))
    index, owner_of = np.concatenate(labels), np.concatenate(owners)
    owner_labels = Labels(owner_of, tuple((one if split is None else one.parent).name for one in groups))
    level = "second level of folders" if split is None else "third level of folders"
    return _rows(folder, files, Labels(index, tuple(names)), owner_labels, query, level)


def _refuse_levels(folder: Path, classes: list[Path], place: Place) -> None:
    """Refuse images that lie two levels deep, because the first level may be groups or classes."""
    for one in classes:
        below = _folders(one)
        if below and not any(map(_is_image, one.iterdir())) and any(map(_is_image, visible_files(one))):
            if len(classes) == 1:
                problem = f"holds the folder {one.name} alone"
                raise place.error("ambiguous", f"{problem}; name it: {place.key}={Path(place.value) / one.name}")
            raise place.error(
                "ambiguous",
                f"{one.name}/ holds folders ({listed([b.name for b in below])}); is {one.name} a class or a group such "
                "as a site? dataset.folders=groups takes the first level as groups and the second as classes, "
                "dataset.folders=classes the first as classes",
            )


def _refuse_no_classes(folder: Path, classes: list[Path], files: list[Path], query: RowQuery) -> None:
    """Refuse folders whose names may be no classes: names of splits, or a table beside them has the labels."""
    ways = (
        f"write a {METADATA} with the columns {FILE_COLUMN} and label, or say dataset.folders=classes, which takes the "
        "names of the folders as classes"
    )
    if len(classes) > 1 and all(split_of_name(one.name) for one in classes):
        problem = f"{listed([one.name + '/' for one in classes])} hold images, but no folder for each class"
        raise query.place.error("ambiguous", f"{problem}; {ways}")
    if found := label_file(folder, files, query.ignore):
        problem = f"{found.name} names the images, and may hold their labels"
        raise query.place.error("ambiguous", f"{problem}; {ways}")


def _collect(classes: list[Path], number: dict[str, int], place: Place) -> tuple[list[Path], NDArray[np.int64]]:
    """Return the images of all classes, and the number of each image's class."""
    files: list[Path] = []
    index: list[int] = []
    for one in classes:
        visible = sorted(visible_files(one))
        images = [path for path in visible if _is_image(path)]
        # an empty folder is a class of which this party has no rows; one with anything in hidden folders is none
        others = () if images else (path for path in one.rglob("*") if path.is_file() and not path.name.startswith("."))
        if other := min(others, default=None):
            raise place.error("kind", f"{one} holds no images ({', '.join(SUFFIXES)}), but {other.name}")
        refuse_unread(one, visible, len(images), place)
        files += images
        index += [number[one.name]] * len(images)
    return files, np.array(index, np.int64)


def _rows(
    folder: Path,
    files: list[Path],
    labels: Labels,
    groups: Labels | None,
    query: RowQuery,
    level: str = "names of folders",
) -> OpenRows:
    place = query.place
    if query.quantity:
        problem = "labels are names of folders; with task=regression a metadata.csv names files and their numbers"
        raise place.error("type", problem)
    if not files:
        raise place.error("empty", f"{folder} holds no images ({', '.join(SUFFIXES)})")

    def inputs(rows: Rows) -> NDArray[np.uint8]:
        return stack_images(((str(files[row]), files[row]) for row in rows), len(rows), place, ImageForm.of(query))

    def entries() -> list[Entry]:
        kinds = sorted({file.suffix.lower() for file in files})
        found = [Entry("files", "image", "input", f"{len(files):,} of {', '.join(kinds)}")]
        found.append(Entry(level, "folders", "label", f"{len(labels.names or ())} classes"))
        if groups is not None:
            found.append(group_entry("first level of folders", "folders", groups))
        return found

    return OpenRows("image", labels, inputs, groups=groups, entries=entries)


def _open_metadata(folder: Path, query: RowQuery) -> OpenRows:
    """Open the images that a table names, with the table's columns as labels and groups."""
    with needs_extra("data", query.place.key, query.place.value):
        import pyarrow
        from pyarrow import dataset

    table = read_text_files([folder / METADATA], query.place)
    if FILE_COLUMN not in table.column_names:
        columns = listed(table.column_names)
        problem = f"{METADATA} has no column {FILE_COLUMN}; its columns are {columns}"
        raise query.place.error("column", f"{problem}; a table without images needs another name, such as rows.csv")
    paths = [folder / str(name) for name in table.column(FILE_COLUMN).to_pylist()]
    if missing := next((path for path in paths if not path.is_file()), None):
        raise query.place.error("missing", f"has no file {missing}, which {METADATA} names")
    image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    cells = pyarrow.array([{"bytes": None, "path": str(path)} for path in paths], image)
    table = table.set_column(table.column_names.index(FILE_COLUMN), FILE_COLUMN, cells)
    return columns_rows(dataset.dataset(table), query)
