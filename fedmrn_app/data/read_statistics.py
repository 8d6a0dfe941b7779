"""What rows say of themselves: shape, normalisation, vocabulary; as plain numbers that travel in a configuration."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.read_source import Form
from fedmrn_app.errors import DataError

DIGITS = 6  # significant, of normalisation
ROWS_AT_ONCE = 4096  # of images that are added up in memory


def measure_rows(form: Form, x: NDArray[Any], said: str) -> dict[str, Any]:
    """Return what a configuration says of rows, by its keys.

    Args:
        form: of the rows.
        x: images uint8 (n, channels, height, width), a table float64 (n, columns) or ids int64 (n, length).
        said: how errors begin.

    Returns:
        Images: channels, height, width, and mean and std of each channel of pixels in [0, 1]. Tables: features, mean
        and std of each column. Ids: window, vocabulary. The std of what never changes is 1.

    Raises:
        DataError: numbers are too large to be normalised.
    """
    if form == "ids":
        return {"window": x.shape[1], "vocabulary": max(int(x.max()) + 1, 2)}
    if form == "image":
        mean, std = _image_statistics(x)
        shape = dict(zip(("channels", "height", "width"), x.shape[1:], strict=True))
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            mean, std = x.mean(0), x.std(0)
        for column in np.flatnonzero(~(np.isfinite(mean) & np.isfinite(std)))[:1]:
            raise DataError(f"{said}: the values of column {column} (from 0) are too large to be normalised")
        std = np.where(x.min(0) == x.max(0), 1.0, std)  # rounding gives what never changes a tiny one
        shape = {"features": x.shape[1]}
    std = np.where(std > 0, std, 1.0)
    pairs = [_rounded(float(m), float(s)) for m, s in zip(mean, std, strict=True)]
    return {**shape, "mean": tuple(m for m, _ in pairs), "std": tuple(s for _, s in pairs)}


def _image_statistics(x: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each channel, from sums that are exact."""
    total = np.zeros(x.shape[1], np.int64)
    squares = np.zeros(x.shape[1], np.int64)
    for start in range(0, len(x), ROWS_AT_ONCE):
        pixels = x[start : start + ROWS_AT_ONCE].astype(np.uint16)
        total += pixels.sum((0, 2, 3), dtype=np.int64)
        squares += (pixels * pixels).sum((0, 2, 3), dtype=np.int64)
    count = len(x) * x.shape[2] * x.shape[3]
    spread = [int(s) * count - int(t) ** 2 for s, t in zip(squares, total, strict=True)]
    return total / (255 * count), np.array([math.sqrt(v) / (255 * count) for v in spread])


def _rounded(mean: float, std: float) -> tuple[float, float]:
    """Both to so many digits of the standard deviation, so that a far-off mean stays exact enough."""
    places = DIGITS - 1 - math.floor(math.log10(std))
    return round(mean, min(places, 300)), float(f"{std:.{DIGITS}g}")
