"""Decoding of images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.place import Place, first_line
from fedmrn_app.data.rows import RowQuery
from fedmrn_app.errors import needs_extra

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")  # as torchvision's ImageFolder
_LOOKED_AT = 1000  # images after one that differs
PLAIN_MODES = ("L", "LA", "RGB", "RGBA")  # 1 to 4 channels of 8 bits


@dataclass(frozen=True)
class ImageForm:
    """What all images are converted to.

    Attributes:
        mode: Pillow's name of the channels, such as `RGB`; None to keep those of the images.
        size: height and width; None to keep those of the images.
        most: the value of images of 16 bits that becomes 255; None to refuse such images.
        advise: whether errors name the keys that would help.
    """

    mode: str | None = None
    size: int | None = None
    most: int | None = None
    advise: bool = False

    @classmethod
    def of(cls, query: RowQuery) -> ImageForm:
        """Return what a configuration asks for."""
        return cls(query.image_mode, query.image_size, query.image_max, not query.on_device)


def stack_images(
    images: Iterable[tuple[str, Any]], count: int, place: Place, form: ImageForm | None = None
) -> NDArray[np.uint8]:
    """Decode images of one size and number of channels into uint8 (count, channels, height, width).

    Args:
        images: what errors call each image, and the image as `open_image` takes it.
        count: the number of images.
        place: what errors name.
        form: what the images are converted to; None to keep them as they are.

    Raises:
        DataError: an image cannot be decoded, or differs from the first.
        ConfigError: Pillow is not installed.
    """
    require_pillow(place)
    form = form or ImageForm()
    stacked: NDArray[np.uint8] | None = None
    first = ""
    rest = iter(images)
    for number, (name, image) in enumerate(rest):
        try:
            pixels = _pixels(image, form)
        except Exception as error:  # decoders raise any exception on broken files
            broken = "cannot identify" in str(error)
            reason = "it is not an image, or broken" if broken else first_line(error)
            raise place.error("image", f"{name} cannot be read as an image: {reason}") from error
        if stacked is None:
            first, stacked = name, np.empty((count, *pixels.shape), np.uint8)
        if pixels.shape != stacked.shape[1:]:
            ways = _ways_to_one_shape([stacked.shape[1:], pixels.shape], rest, form) if form.advise else []
            raise place.error(
                "shape",
                f"{name} is {by(pixels.shape)} (channels x height x width), the first image, {first}, is "
                f"{by(stacked.shape[1:])}; all must have one size and mode"
                + (f", such as {' and '.join(ways)} makes them" if ways else ""),
            )
        stacked[number] = pixels
    if stacked is None:
        raise place.error("empty", "has no rows")
    return stacked


def _ways_to_one_shape(shapes: list[tuple[int, ...]], rest: Iterator[tuple[str, Any]], form: ImageForm) -> list[str]:
    """Return the settings with which images of these shapes, and the next ones, have one size and mode."""
    for _, image in islice(rest, _LOOKED_AT):
        with suppress(Exception):  # one that is broken is found once the others are of one shape
            shapes.append(_pixels(image, form).shape)
    ways = ["dataset.image_mode=RGB"] if len({shape[0] for shape in shapes}) > 1 else []
    return [*ways, "dataset.image_size=64"] if len({shape[1:] for shape in shapes}) > 1 else ways


def require_pillow(place: Place) -> None:
    """Raise ConfigError, which names the place, where Pillow is not installed."""
    with needs_extra("device", place.key, place.value):
        import PIL.Image  # noqa: F401


def open_image(image: Any) -> Image.Image:
    """Decode an image and turn it upright.

    Args:
        image: a path, the bytes of a file, or a mapping of `bytes` and `path` as the library datasets stores images.

    Raises:
        Exception: the image is broken, or has several pages.
    """
    from PIL import Image, ImageOps

    if isinstance(image, dict):
        image = image["bytes"] if image["bytes"] is not None else Path(image.get("path") or "")
    with Image.open(image if isinstance(image, Path) else BytesIO(image or b"")) as opened:
        pages = getattr(opened, "n_frames", 1)
        if pages > 1 and opened.format != "MPO":  # as cameras store a photo, with a preview as its second page
            raise ValueError(f"it has {pages} pages or frames; write each to a file of its own, or keep one")
        opened.load()
        upright = ImageOps.exif_transpose(opened)
        upright.format = opened.format  # is lost where an image is turned
        return upright


def _pixels(image: Any, form: ImageForm) -> NDArray[np.uint8]:
    """Return an image as uint8 (channels, height, width).

    Raises:
        Exception: the image is broken, or its pixels have more than 8 bits a channel.
    """
    from PIL import Image

    upright = open_image(image)
    if upright.mode.startswith(("I", "F")):
        upright = _of_8_bits(upright, form)
    if upright.mode == "1":
        upright = upright.convert("L")
    elif upright.mode not in PLAIN_MODES:  # palettes, CMYK
        upright = upright.convert("RGBA" if "transparency" in upright.info else "RGB")
    if form.mode is not None and upright.mode != form.mode:
        upright = upright.convert(form.mode)
    if form.size is not None:
        upright = upright.resize((form.size, form.size), Image.Resampling.BILINEAR)
    pixels = np.asarray(upright, np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _of_8_bits(image: Image.Image, form: ImageForm) -> Image.Image:
    """Return a grey image of 16 bits with 8 bits, in which `form.most` is 255.

    Raises:
        ValueError: pixels are fractions, below 0 or above `form.most`.
    """
    from PIL import Image

    values = np.asarray(image)
    least, most = values.min(), values.max()
    pixels = f"its pixels are from {least:g} to {most:g} (mode {image.mode})"
    if least < 0 or not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"{pixels}, not whole numbers from 0; convert the files to 8 bits, 0 to 255, beforehand")
    if form.most is None or most > form.most:
        over = "stored in more than 8 bits" if form.most is None else f"above dataset.image_max={form.most}"
        way = next(limit for limit in (255, 4095, 65535, int(most)) if limit >= most)
        raise ValueError(f"{pixels}, {over}; dataset.image_max={way} makes {way} the 255 of 8 bits")
    return Image.fromarray((values * (255 / form.most)).round().astype(np.uint8))


def by(shape: tuple[int, ...]) -> str:
    """Return a shape as people write it: 3x32x32."""
    return "x".join(map(str, shape))
