"""Images with their label maps, read pair by pair: from parquet files or from a folder in PascalVOC's layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedmrn_app.data.hub import read_hub_split
from fedmrn_app.errors import DataError

LAYOUTS = "parquet files, or PascalVOC's JPEGImages, SegmentationClass and ImageSets"
VOC_FOLDERS = ("", "VOC2012", "VOCdevkit/VOC2012")  # where those may lie below the folder that is named
VOC_LISTS = {"train": "train.txt", "test": "val.txt"}  # the labels of PascalVOC's own test images are not public

Pair = tuple[Image.Image, NDArray[Any]]  # an image and its label map, (height, width)
Files = Sequence[tuple[Path, Path]]  # of images and label maps


@dataclass(frozen=True)
class Pairs:
    """Images and label maps by number.

    Attributes:
        names: of each pair, for messages.
        read: decodes a pair; raises OSError or ValueError where a file is broken, DataError where one is missing.
    """

    names: Sequence[str]
    read: Callable[[int], Pair]


def voc_files(folder: Path, split: str) -> Files | None:
    """The files of a split of a folder in PascalVOC's layout; None where the folder has another layout.

    Raises:
        DataError: no list of the split's images, or one that names files that are not there.
    """
    roots = (folder / below for below in VOC_FOLDERS)
    root = next((r for r in roots if (r / "ImageSets/Segmentation").is_dir()), None)
    if root is None:
        return None
    names = Path("ImageSets/Segmentation", VOC_LISTS[split])
    if not (root / names).is_file():
        raise DataError(f"dataset.path={folder}: has no {names}, the list of the {split} images; add it")
    pairs = [(Path("JPEGImages", f"{n}.jpg"), Path("SegmentationClass", f"{n}.png")) for n in _lines(root / names)]
    for pair, what in ((pair, what) for pair in pairs for what in (0, 1)):
        if not (root / pair[what]).is_file():
            kind = ("image", "label map")[what]
            raise DataError(
                f"dataset.path={folder}: has no {kind} {pair[what]}; add it, or take {pair[what].stem} out of {names}"
            )
    return [(root / image, root / labels) for image, labels in pairs]


def voc_pairs(files: Files) -> Pairs:
    """Read image files and the palette images of their labels."""

    def read(number: int) -> Pair:
        with Image.open(files[number][0]) as image, Image.open(files[number][1]) as labels:
            return image.convert("RGB"), np.asarray(labels)  # the indices into the palette are the labels

    return Pairs([str(labels) for _, labels in files], read)


def parquet_pairs(
    name: str, hub: str | None, subset: str | None, folder: Path | None, split: str, columns: tuple[str, str]
) -> Pairs:
    """Read two columns of images of a data set on the hub, or in a local folder of the same layout.

    Args:
        name: of the data set.
        hub: its name on the hub.
        subset: likewise.
        folder: takes the place of the hub.
        split: of the source, such as `train`.
        columns: of the images and of the label maps.

    Raises:
        DataError: the source cannot be read, or has no such columns.
    """
    rows = read_hub_split(name, hub, subset, folder, split)
    from datasets import Image as ImageFeature

    place = hub if folder is None else folder
    for key, column in zip(("image_column", "annotation_column"), columns, strict=True):
        if column not in rows.column_names:
            raise DataError(
                f"dataset.{key}={column}: no such column in {place}, which has {', '.join(rows.column_names)}"
            )
        try:
            rows = rows.cast_column(column, ImageFeature())  # files may not say that their bytes are images
        except (TypeError, ValueError) as error:
            raise DataError(f"dataset.{key}={column}: holds no images in {place}; name another column") from error

    def read(number: int) -> Pair:
        row = rows[number]
        for column, what in zip(columns, ("image", "label map"), strict=True):
            if row[column] is None:
                raise DataError(f"dataset.path={place}: row {number} of {split} has no {what}; add it, or drop the row")
        return row[columns[0]], np.asarray(row[columns[1]])

    return Pairs([f"{place}, row {number} of {split}" for number in range(len(rows))], read)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split()
