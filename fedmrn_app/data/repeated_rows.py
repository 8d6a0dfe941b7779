"""Rows for evaluation that are training rows too, so that their accuracy tells nothing about new rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedmrn_app.data.samples import Samples

WORTH_SAYING = 0.01  # of the rows for evaluation
_MOST_ROWS, _MOST_BYTES = 1 << 20, 1 << 29  # that are looked at in each split: half a second
_PIECE = 1 << 10  # rows that are read at a time


def repeated_rows(training: Samples, evaluation: Samples) -> int:
    """Return how many rows for evaluation equal a training row, with inputs and target.

    Of large splits only the first rows are looked at, 1,048,576 rows or 512 MiB.
    """
    wanted: dict[int, int] = {}
    for row in _hashes(evaluation):
        wanted[row] = wanted.get(row, 0) + 1
    return sum(wanted.pop(row, 0) for row in _hashes(training))


def _hashes(samples: Samples) -> Iterator[int]:
    if not len(samples):
        return
    row_bytes = np.asarray(samples.x[:1]).nbytes + 1
    count = min(len(samples), _MOST_ROWS, max(1, _MOST_BYTES // row_bytes))
    for start in range(0, count, _PIECE):
        part = slice(start, min(start + _PIECE, count))
        x, y = np.ascontiguousarray(samples.x[part]), np.ascontiguousarray(samples.y[part])
        for inputs, target in zip(x, y, strict=True):
            yield hash(inputs.tobytes() + target.tobytes())
