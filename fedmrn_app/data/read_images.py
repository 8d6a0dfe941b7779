"""Images in folders, one for each class, and decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fedmrn_app.data.read_labels import Labels
from fedmrn_app.data.read_source import RowNumbers, Source, Splits, Wanted
from fedmrn_app.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")  # as torchvision's ImageFolder
PLAIN_MODES = ("L", "LA", "RGB", "RGBA")  # of 1 to 4 channels of 8 bits


def image_folder_splits(folder: Path, wanted: Wanted) -> Splits:
    """The splits of `train/CLASS/` and `test/CLASS/`, or of `CLASS/` alone, in alphabetical order."""
    places = {place.name.lower().removesuffix("ing"): place for place in _folders(folder)}  # Train, training
    found = {split: places[split] for split in ("train", "test") if split in places and _holds_classes(places[split])}
    if not found:
        found = {"train": folder}

    def opener(place: Path) -> Callable[[], Source]:
        return lambda: _open_folder(place, wanted)

    return {split: opener(place) for split, place in found.items()}


def _holds_classes(folder: Path) -> bool:
    """Whether a folder called `train` is a split, and not the pictures of a class of trains."""
    return bool(_folders(folder)) and not any(map(_is_image, folder.iterdir()))


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "__")))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def _open_folder(folder: Path, wanted: Wanted) -> Source:
    classes = _folders(folder)
    if not classes:
        raise DataError(f"{wanted.said}: {folder} has no folder for each class, such as cat/ and dog/ with images each")
    files: list[Path] = []
    index: list[int] = []
    for number, place in enumerate(classes):
        below = sorted(path for path in place.rglob("*") if path.is_file() and not path.name.startswith("."))
        images = [path for path in below if _is_image(path)]
        if below and not images:  # an empty folder is a class that this party has no rows of
            raise DataError(f"{wanted.said}: {place} holds no images ({', '.join(SUFFIXES)}), but {below[0].name}")
        files += images
        index += [number] * len(images)
    if not files:
        raise DataError(f"{wanted.said}: {folder} holds no images ({', '.join(SUFFIXES)})")
    labels = Labels(np.array(index, np.int64), tuple(place.name for place in classes))

    def inputs(rows: RowNumbers) -> NDArray[np.uint8]:
        return stack_images(((str(files[row]), files[row]) for row in rows), len(rows), wanted.said)

    return Source("image", labels, inputs)


def stack_images(images: Iterable[tuple[str, Path | bytes]], count: int, said: str) -> NDArray[np.uint8]:
    """Decode images of one size and number of channels.

    Args:
        images: what errors call each, and its file or the bytes of one.
        count: how many there are.
        said: how errors begin.

    Returns:
        uint8 (count, channels, height, width).

    Raises:
        DataError: one cannot be decoded, or differs from the first.
    """
    stacked: NDArray[np.uint8] | None = None
    first = ""
    for number, (name, image) in enumerate(images):
        try:
            pixels = channels_first(decode_image(image))
        except Exception as error:  # decoders raise what they like on broken files
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            if "cannot identify" in reason:
                reason = "it is none, or broken"
            raise DataError(f"{said}: {name} cannot be read as an image: {reason}") from error
        if stacked is None:
            first, stacked = name, np.empty((count, *pixels.shape), np.uint8)
        if pixels.shape != stacked.shape[1:]:
            raise DataError(
                f"{said}: {name} is {by(pixels.shape)} (channels x height x width), the first image, {first}, is "
                f"{by(stacked.shape[1:])}; all must be of one size and mode"
            )
        stacked[number] = pixels
    if stacked is None:
        raise DataError(f"{said}: has no rows")
    return stacked


def decode_image(image: Path | bytes) -> NDArray[np.uint8]:
    """Pixels (height, width) or (height, width, channels), turned as the camera was held.

    Raises:
        Exception: the image is broken, or its pixels have more than 8 bits a channel.
    """
    with Image.open(BytesIO(image) if isinstance(image, bytes) else image) as opened:
        opened.load()
        upright = ImageOps.exif_transpose(opened)
        if upright.mode.startswith(("I", "F")):
            raise ValueError(f"its pixels have more than 8 bits (mode {upright.mode})")
        if upright.mode == "1":
            upright = upright.convert("L")
        elif upright.mode not in PLAIN_MODES:  # palettes, CMYK
            upright = upright.convert("RGBA" if "transparency" in upright.info else "RGB")
        return np.asarray(upright, np.uint8)


def channels_first(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pixels (height, width) or (height, width, channels) as (channels, height, width)."""
    return image[None] if image.ndim == 2 else image.transpose(2, 0, 1)


def by(shape: tuple[int, ...]) -> str:
    """A shape as people write it: 3x32x32."""
    return "x".join(map(str, shape))
