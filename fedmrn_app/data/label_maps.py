"""Images with label maps: from parquet files, from the hub, or from a folder in PascalVOC's layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedmrn_app.data.columns import read_column
from fedmrn_app.data.place import Place
from fedmrn_app.data.tables import Table, holds_images
from fedmrn_app.errors import DataError

LAYOUTS = "a folder with parquet files, or with PascalVOC's JPEGImages, SegmentationClass and ImageSets"
VOC_FOLDERS = ("", "VOC2012", "VOCdevkit/VOC2012")  # where those may be below the given folder
VOC_LISTS = {"train": "train.txt", "test": "val.txt"}  # the labels of PascalVOC's own test images are not public

Pair = tuple[str, Any, Any]  # a name for errors, an image and its label map, both as `images.open_image` takes them


def voc_files(folder: Path, split: str, place: Place) -> list[tuple[Path, Path]] | None:
    """Return images and label maps of a folder in PascalVOC's layout; None if the folder has another layout.

    Raises:
        DataError: the list of the split's images is missing, or a file that it names.
    """
    root = next((folder / r for r in VOC_FOLDERS if (folder / r / "ImageSets/Segmentation").is_dir()), None)
    if root is None:
        return None
    names = Path("ImageSets/Segmentation", VOC_LISTS[split])
    if not (root / names).is_file():
        raise place.error("missing", f"has no {names}, the list of the {split} images; add it")
    with place.reading():
        listed = (root / names).read_text(encoding="utf-8").split()
    pairs = [(Path("JPEGImages", f"{n}.jpg"), Path("SegmentationClass", f"{n}.png")) for n in listed]
    for pair in pairs:
        for file, kind in zip(pair, ("image", "label map"), strict=True):
            if not (root / file).is_file():
                raise place.error("missing", f"has no {kind} {file}; add it, or take {file.stem} out of {names}")
    return [(root / image, root / labels) for image, labels in pairs]


def table_pairs(table: Table, columns: Sequence[str], place: Place, split: str) -> Iterator[Pair]:
    """Read the pairs of a table.

    Args:
        table: a table from `tables.open_tables` or `hub.read_hub_split`.
        columns: the columns of the images and of the label maps.
        place: the place of the table, which errors name.
        split: its split, which errors name.

    Raises:
        DataError: the table has no such columns, or a cell is empty.
    """
    for key, column in zip(("dataset.image_column", "dataset.annotation_column"), columns, strict=True):
        names, problem = table.schema.names, None
        if column not in names:
            problem = f"no such column in {place.value}, which has {', '.join(names)}"
        elif not holds_images(table.schema.field(column).type):
            problem = f"holds no images in {place.value}; name another column"
        if problem:
            raise DataError(f"{key}={column}: {problem}", code="column", key=key, value=column)
    images, maps = (read_column(table, column, place) for column in columns)
    for row, pair in enumerate(zip(images, maps, strict=True)):
        for cell, what in zip(pair, ("image", "label map"), strict=True):
            if not cell.is_valid:
                raise place.error("missing", f"row {row} of {split} has no {what}; add it, or drop the row")
        yield f"row {row} of {split}", pair[0].as_py(), pair[1].as_py()
