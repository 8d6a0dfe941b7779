"""Folders that are no classes, or of which not all images would be read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fedmrn_app.data.place import Place
from fedmrn_app.data.rows import RowQuery, way_to_ignore

_IMAGES = ("images", "imgs", "image", "img", "jpegimages")
_MAPS = ("masks", "mask", "labels", "annotations", "annotation", "segmentation", "segmentationclass")
_NO_LABEL = ("unlabeled", "unlabelled", "unknown", "unsupervised")
_OTHER_IMAGES = re.compile(
    r"\.(apng|arw|avif|cr[23]|czi|dcm|dib|dicom|dng|exr|gif|hei[cf]|hdr|j2k|jfif|jp2|jpe|jxl|mha|mhd|ndpi|nef|nii|nrrd|"
    r"np[yz]|pbm|pcx|pnm|psd|sv[gs]|tga)",
    re.IGNORECASE,
)


def refuse_other_names(classes: Sequence[Path], query: RowQuery) -> None:
    """Refuse folders that are called as images and their label maps are, or as rows without a label.

    Raises:
        DataError: there are such folders.
    """
    image, label_map, none = (
        next((one.name for one in classes if one.name.lower() in words), None) for words in (_IMAGES, _MAPS, _NO_LABEL)
    )
    anyway = "dataset.folders=classes takes the names of the folders as classes"
    if image and label_map:
        way = (
            "dataset=pascal_voc reads label maps, from JPEGImages/, SegmentationClass/ and ImageSets/ or parquet files"
        )
        raise query.place.error("ambiguous", f"{image}/ and {label_map}/ seem to be no classes; {way}; {anyway}")
    if none:
        problem = f"{none}/ may hold images without a label"
        make = f"dataset.folders=classes dataset.classes={len(classes)} makes it a class"
        raise query.place.error("ambiguous", f"{problem}; {way_to_ignore([none])}; {make}")


def refuse_links(folders: Sequence[Path], query: RowQuery) -> None:
    """Refuse a link from one of these folders to another, whose images would be read twice.

    Raises:
        DataError: there is one.
    """
    seen: dict[Path, str] = {}
    for one in sorted(folders, key=Path.is_symlink):  # links last
        if (other := seen.setdefault(one.resolve(), one.name)) != one.name:
            problem = f"{one.name}/ is a link to the images of {other}/, which would be read twice; remove it"
            way = "" if query.on_device else f", or {way_to_ignore([one.name])}"
            raise query.place.error("ambiguous", f"{problem}{way}")


def refuse_unread(folder: Path, files: Sequence[Path], images: int, place: Place) -> None:
    """Refuse a folder with images of kinds that are not read beside images that are.

    Args:
        folder: of a class.
        files: all its files.
        images: the number of those that are read.
        place: what errors name.

    Raises:
        DataError: there are such files.
    """
    if unread := [file.name for file in files if _OTHER_IMAGES.fullmatch(file.suffix)]:
        count = f"{len(unread):,} file{'s' * (len(unread) > 1)} of kinds that are not read, such as {unread[0]},"
        problem = f"{folder} holds {count} beside {images:,} that are"
        raise place.error("kind", f"{problem}; convert them to .png or .jpg, or take them out")
