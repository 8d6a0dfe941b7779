"""Decoding of images, and folders with one folder of images for each class."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.labels import Labels
from fedmrn_app.data.place import Place, first_line
from fedmrn_app.data.rows import OpenRows, RowQuery, Splits
from fedmrn_app.data.samples import Rows
from fedmrn_app.errors import needs_extra

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")  # as torchvision's ImageFolder
PLAIN_MODES = ("L", "LA", "RGB", "RGBA")  # 1 to 4 channels of 8 bits


def image_folder_splits(folder: Path, query: RowQuery) -> Splits:
    """Return the splits of `train/CLASS/` and `test/CLASS/`, or of `CLASS/` alone, whose rows are training rows."""
    places = {place.name.lower().removesuffix("ing"): place for place in _folders(folder)}  # Train, training
    found = {split: places[split] for split in ("train", "test") if split in places and _holds_classes(places[split])}
    return {split: partial(_open_folder, place, query) for split, place in (found or {"train": folder}).items()}


def _holds_classes(folder: Path) -> bool:
    """Return whether a folder called `train` is a split, and not the pictures of a class of trains."""
    return bool(_folders(folder)) and not any(map(_is_image, folder.iterdir()))


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "__")))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def _open_folder(folder: Path, query: RowQuery) -> OpenRows:
    """Open a folder of classes; classes are in alphabetical order, and so are the images of each class."""
    classes, place = _folders(folder), query.place
    if not classes:
        raise place.error("empty", f"{folder} has no folder for each class, such as cat/ and dog/ with images each")
    files: list[Path] = []
    index: list[int] = []
    for number, one in enumerate(classes):
        below = sorted(path for path in one.rglob("*") if path.is_file() and not path.name.startswith("."))
        images = [path for path in below if _is_image(path)]
        if below and not images:  # an empty folder is a class of which this party has no rows
            raise place.error("kind", f"{one} holds no images ({', '.join(SUFFIXES)}), but {below[0].name}")
        files += images
        index += [number] * len(images)
    if not files:
        raise place.error("empty", f"{folder} holds no images ({', '.join(SUFFIXES)})")

    def inputs(rows: Rows) -> NDArray[np.uint8]:
        return stack_images(((str(files[row]), files[row]) for row in rows), len(rows), place)

    return OpenRows("image", Labels(np.array(index, np.int64), tuple(one.name for one in classes)), inputs)


def stack_images(images: Iterable[tuple[str, Any]], count: int, place: Place) -> NDArray[np.uint8]:
    """Decode images of one size and number of channels into uint8 (count, channels, height, width).

    Args:
        images: what errors call each image, and the image as `open_image` takes it.
        count: the number of images.
        place: what errors name.

    Raises:
        DataError: an image cannot be decoded, or differs from the first.
        ConfigError: Pillow is not installed.
    """
    require_pillow(place)
    stacked: NDArray[np.uint8] | None = None
    first = ""
    for number, (name, image) in enumerate(images):
        try:
            pixels = _pixels(image)
        except Exception as error:  # decoders raise any exception on broken files
            broken = "cannot identify" in str(error)
            reason = "it is not an image, or broken" if broken else first_line(error)
            raise place.error("image", f"{name} cannot be read as an image: {reason}") from error
        if stacked is None:
            first, stacked = name, np.empty((count, *pixels.shape), np.uint8)
        if pixels.shape != stacked.shape[1:]:
            raise place.error(
                "shape",
                f"{name} is {by(pixels.shape)} (channels x height x width), the first image, {first}, is "
                f"{by(stacked.shape[1:])}; all must have one size and mode",
            )
        stacked[number] = pixels
    if stacked is None:
        raise place.error("empty", "has no rows")
    return stacked


def require_pillow(place: Place) -> None:
    """Raise ConfigError, which names the place, where Pillow is not installed."""
    with needs_extra("device", place.key, place.value):
        import PIL.Image  # noqa: F401


def open_image(image: Any) -> Image.Image:
    """Decode an image and turn it upright.

    Args:
        image: a path, the bytes of a file, or a mapping of `bytes` and `path` as the library datasets stores images.

    Raises:
        Exception: the image is broken.
    """
    from PIL import Image, ImageOps

    if isinstance(image, dict):
        image = image["bytes"] if image["bytes"] is not None else Path(image.get("path") or "")
    with Image.open(image if isinstance(image, Path) else BytesIO(image or b"")) as opened:
        opened.load()
        return ImageOps.exif_transpose(opened)


def _pixels(image: Any) -> NDArray[np.uint8]:
    """Return an image as uint8 (channels, height, width).

    Raises:
        Exception: the image is broken, or its pixels have more than 8 bits a channel.
    """
    upright = open_image(image)
    if upright.mode.startswith(("I", "F")):
        raise ValueError(f"its pixels have more than 8 bits (mode {upright.mode})")
    if upright.mode == "1":
        upright = upright.convert("L")
    elif upright.mode not in PLAIN_MODES:  # palettes, CMYK
        upright = upright.convert("RGBA" if "transparency" in upright.info else "RGB")
    pixels = np.asarray(upright, np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def by(shape: tuple[int, ...]) -> str:
    """Return a shape as people write it: 3x32x32."""
    return "x".join(map(str, shape))
