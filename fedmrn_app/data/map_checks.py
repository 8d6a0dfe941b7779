"""What label maps hold, and the refusal of maps whose labels would not count or would not agree."""

from __future__ import annotations

from collections.abc import Collection
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

    def read(self, image: Image.Image, name: str) -> NDArray[np.int64]:
        """Return the labels of a map, int64 (height, width): of a palette image the indices into the palette.

        Args:
            image: the label map, from `images.open_image`.
            name: what errors call it.

        Raises:
            DataError: it holds colours.
        """
        if image.mode not in _LABEL_MODES and not image.mode.startswith("I"):
            problem = {"F": "holds fractions", "LA": "has an alpha channel", "PA": "has an alpha channel"}
            what = f"the label map {problem.get(image.mode, 'is in colours')} (mode {image.mode})"
            raise self._place.error("shape", f"{name}: {what}; store the number of each pixel's class in one channel")
        known = np.asarray(image).astype(np.int64)
        self.labels.update(map(int, np.unique(known)))
        return known


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
