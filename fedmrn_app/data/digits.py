"""scikit-learn's 8x8 digits, which need no download."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import needs_extra

DIGITS_TEST_SIZE = 360  # of 1,797 rows, by default
DIGITS_TEST_SIZES = (10, 1787)  # each split must have a row of each of the ten labels


def read_digits(split: str, test_size: int = DIGITS_TEST_SIZE) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read scikit-learn's 1,797 digits, pixel values 0..16 scaled to 0..255, split with equal shares of each label.

    Returns:
        Images (n, 1, 8, 8) and labels (n,).

    Raises:
        ConfigError: scikit-learn is not installed.
    """
    with needs_extra("data", "dataset", "digits"):
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    pixels = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    train_x, test_x, train_y, test_y = train_test_split(
        pixels, labels.astype(np.int64), test_size=test_size, stratify=labels, random_state=0
    )
    return (train_x, train_y) if split == "train" else (test_x, test_y)
