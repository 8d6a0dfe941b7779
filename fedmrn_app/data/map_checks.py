"""What label maps hold, and the refusal of maps whose labels would not count or would not agree."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.labels import listed
from fedmrn_app.data.place import Place

if TYPE_CHECKING:
    from PIL import Image

_LABEL_MODES = ("1", "L", "P")  # and those of more bits, which begin with I


class MapReader:
    """Reads the labels of one label map after the other.

    Attributes:
        labels: the labels of all maps so far, as they are stored.
    """

    def __init__(self, place: Place) -> None:
        self.labels: set[int] = set()
        self._place = place
        self._colours: dict[int, tuple[tuple[int, ...], str]] = {}  # of palettes, by label: the colour and the map

    def read(self, image: Image.Image, name: str) -> NDArray[np.int64]:
        """Return the labels of a map, int64 (height, width): of a palette image the indices into the palette.

        Args:
            image: the label map, from `images.open_image`.
            name: what errors call it.

        Raises:
            DataError: it holds colours, is a JPEG, or its palette gives a label another colour than an earlier one.
        """
        if image.format in ("JPEG", "MPO"):
            what = "the label map is a JPEG, which blurs labels; write it as a PNG from its source"
            raise self._place.error("image", f"{name}: {what}")
        if image.mode not in _LABEL_MODES and not image.mode.startswith("I"):
            problem = {"F": "holds fractions", "LA": "has an alpha channel", "PA": "has an alpha channel"}
            what = f"the label map {problem.get(image.mode, 'is in colours')} (mode {image.mode})"
            raise self._place.error("shape", f"{name}: {what}; store the number of each pixel's class in one channel")
        known = np.asarray(image).astype(np.int64)
        found = list(map(int, np.unique(known)))
        self.labels.update(found)
        if image.mode == "P":
            self._compare_palette(image, found, name)
        return known

    def _compare_palette(self, image: Image.Image, found: Sequence[int], name: str) -> None:
        """Refuse a palette that gives one of its labels another colour than an earlier map: it would be no class."""
        values = image.getpalette("RGB") or []
        for label in found:
            colour = tuple(values[3 * label : 3 * label + 3])
            other, first = self._colours.setdefault(label, (colour, name))
            if other != colour:
                problem = f"the palette gives {label} the colour {colour}, that of {first} gives it {other}"
                way = "convert colours to numbers of classes in all maps alike"
                raise self._place.error("label", f"{name}: {problem}, so that it stands for two classes; {way}")


def refuse_few_classes(
    found: int, labels: Collection[int], first_class: int, void: int, place: Place, maps: str
) -> None:
    """Refuse label maps of which no pixel counts, or in which one class is all that counts.

    Args:
        found: the number of classes that occur.
        labels: the labels that occur, as they are stored.
        first_class: the label of the first class; labels below it do not count.
        void: the label that does not count.
        place: what errors name.
        maps: what errors call the maps.

    Raises:
        DataError: there are fewer than two classes.
    """
    if found > 1:
        return
    stored = sorted(labels)
    counted = [label for label in stored if label != void]
    way = "training needs two classes or more"
    if counted and void in stored:
        keys = _keys(counted[0], counted[-1] + 1)
        way = f"where {void} is a class and not void, write it as {counted[-1] + 1} in the files, and set {keys}"
    elif len(counted) > 1:
        way = f"to count them, set {_keys(counted[0], counted[-1])}"
    what = f"{'only one class' if found else 'no class'} occurs in {maps}"
    uncounted = f"dataset.void={void} and labels below dataset.first_class={first_class} do not count"
    values = f"whose labels are {listed([*map(str, stored)])}"
    raise place.error("label", f"{what}, {values}; {uncounted}; {way}")


def _keys(first: int, last: int) -> str:
    """Return the keys with which these labels and those between are classes."""
    return f"dataset.first_class={first} dataset.classes={last - first + 1}"
