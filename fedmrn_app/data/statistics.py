"""Shape, normalization and vocabulary of stored rows, as plain numbers that travel in a configuration."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.place import Place
from fedmrn_app.data.rows import Form

DIGITS = 6  # significant digits of mean and std
CHUNK = 4096  # images that are added up at once


def measure_rows(
    form: Form, x: NDArray[Any], place: Place, indicators: NDArray[np.bool_] | None = None
) -> dict[str, Any]:
    """Return the configuration keys that describe rows, with their values.

    Args:
        form: what the rows are.
        x: images uint8 (n, channels, height, width), a table float64 (n, columns) or ids int64 (n, length).
        place: what errors name.
        indicators: the columns of a table that are not normalized, bool (columns,); None for no column.

    Returns:
        For images channels, height, width, and mean and std of each channel of pixels in [0, 1]; for tables features,
        and mean and std of each column; for ids window and vocabulary. The std of a constant is 1.

    Raises:
        DataError: numbers are too large to be normalized.
    """
    if form == "ids":
        return {"window": x.shape[1], "vocabulary": max(int(x.max()) + 1, 2)}
    mean, std = moments(form, x, place)
    if form == "image":
        shape = dict(zip(("channels", "height", "width"), x.shape[1:], strict=True))
    else:
        shape = {"features": x.shape[1]}
        if indicators is not None:
            mean, std = np.where(indicators, 0.0, mean), np.where(indicators, 1.0, std)
    return {**shape, **normalization(mean, std)}


def moments(form: Form, x: NDArray[Any], place: Place) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of each channel or column; that of a constant is 0.

    Args:
        form: image or table.
        x: images uint8 (n, channels, height, width), or a table float64 (n, columns).
        place: what errors name.

    Raises:
        DataError: numbers are too large to be normalized.
    """
    if form == "image":
        return _image_statistics(x)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = x.mean(0), x.std(0)
    for column in np.flatnonzero(~(np.isfinite(mean) & np.isfinite(std)))[:1]:
        raise place.error("range", f"the values of column {column} (from 0) are too large to be normalized")
    constant = x.min(0) == x.max(0)  # rounding errors give it a tiny std
    return np.where(constant, x[0], mean), np.where(constant, 0.0, std)


def normalization(mean: NDArray[np.float64], std: NDArray[np.float64]) -> dict[str, tuple[float, ...]]:
    """Return the keys mean and std of channels or columns; the std of a constant is 1."""
    pairs = [rounded(float(m), float(s)) for m, s in zip(mean, np.where(std > 0, std, 1.0), strict=True)]
    return {"mean": tuple(m for m, _ in pairs), "std": tuple(s for _, s in pairs)}


def standard(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean and the standard deviation of values (n,) that are not all the same."""
    return rounded(float(values.mean()), float(values.std()))


def _image_statistics(x: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of each channel, from exact sums."""
    total, squares = np.zeros((2, x.shape[1]), np.int64)
    for start in range(0, len(x), CHUNK):
        pixels = x[start : start + CHUNK].astype(np.uint16)
        total += pixels.sum((0, 2, 3), dtype=np.int64)
        squares += (pixels * pixels).sum((0, 2, 3), dtype=np.int64)
    count = len(x) * x.shape[2] * x.shape[3]
    spread = [int(s) * count - int(t) ** 2 for s, t in zip(squares, total, strict=True)]
    return total / (255 * count), np.array([math.sqrt(v) / (255 * count) for v in spread])


def rounded(mean: float, std: float) -> tuple[float, float]:
    """Round both to the same digit of the standard deviation, so that a mean far from zero stays exact enough."""
    places = DIGITS - 1 - math.floor(math.log10(std))
    return round(mean, min(places, 300)), float(f"{std:.{DIGITS}g}")
