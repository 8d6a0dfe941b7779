"""scikit-learn's 8x8 digits, which need no download."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

DIGITS_TEST_SIZE = 360  # where nothing is said
DIGITS_TEST_SIZES = (10, 1787)  # a row of each of the ten labels at least must be on either side of the cut


def read_digits(split: str, test_size: int) -> dict[str, NDArray[Any]]:
    """scikit-learn's 1,797 digits, pixel values 0..16 scaled to 0..255, split with equal shares of each label.

    Returns:
        x uint8 (n, 1, 8, 8) and y int64 (n,).
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    pixels = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    train_x, test_x, train_y, test_y = train_test_split(
        pixels, labels.astype(np.int64), test_size=test_size, stratify=labels, random_state=0
    )
    return {"x": train_x, "y": train_y} if split == "train" else {"x": test_x, "y": test_y}
