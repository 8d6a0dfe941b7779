"""Rows for evaluation that are training rows too, and rows with the inputs of others but another label."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.samples import Samples

WORTH_SAYING = 0.01  # of the rows
_MOST_ROWS, _MOST_BYTES = 1 << 20, 1 << 29  # that are looked at in each split: half a second
_PIECE = 1 << 10  # rows that are read at a time

Hashes = NDArray[np.int64]  # (n, 2): of the inputs of each row, and of inputs and target


def row_hashes(samples: Samples) -> Hashes:
    """Return hashes of rows; of large splits only of the first rows, 1,048,576 rows or 512 MiB."""
    return np.fromiter(_hashes(samples), np.dtype((np.int64, 2)))


def repeated_rows(training: Hashes, evaluation: Hashes) -> int:
    """Return how many rows for evaluation equal a training row, with inputs and target."""
    return int(np.isin(evaluation[:, 1], training[:, 1]).sum())


def contradicting_rows(rows: Hashes) -> int:
    """Return how many rows have the inputs of another row, and another target than it."""
    _, first, index = np.unique(rows[:, 0], return_index=True, return_inverse=True)
    differs = rows[:, 1] != rows[first, 1][index]
    return int(np.isin(index, index[differs]).sum())


def _hashes(samples: Samples) -> Iterator[tuple[int, int]]:
    if not len(samples):
        return
    row_bytes = np.asarray(samples.x[:1]).nbytes + 1
    count = min(len(samples), _MOST_ROWS, max(1, _MOST_BYTES // row_bytes))
    for start in range(0, count, _PIECE):
        part = slice(start, min(start + _PIECE, count))
        x, y = np.ascontiguousarray(samples.x[part]), np.ascontiguousarray(samples.y[part])
        for inputs, target in zip(x, y, strict=True):
            content = inputs.tobytes()
            yield hash(content), hash(content + target.tobytes())
