"""Rows for evaluation that are training rows too, so that their accuracy tells nothing about new rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from fedmrn_app.data.samples import Samples

WORTH_SAYING = 0.01  # of the rows for evaluation
_MOST = 1 << 20  # training rows that are looked at
_PIECE = 1 << 10  # rows that are read at a time


def repeated_rows(training: Samples, evaluation: Samples) -> int:
    """Return how many rows for evaluation equal one of the first 1,048,576 training rows, with inputs and target."""
    wanted: dict[int, int] = {}
    for row in _hashes(evaluation):
        wanted[row] = wanted.get(row, 0) + 1
    return sum(wanted.pop(row, 0) for row in islice(_hashes(training), _MOST))


def _hashes(samples: Samples) -> Iterator[int]:
    for start in range(0, len(samples), _PIECE):
        part = slice(start, start + _PIECE)
        x, y = np.ascontiguousarray(samples.x[part]), np.ascontiguousarray(samples.y[part])
        for inputs, target in zip(x, y, strict=True):
            yield hash(inputs.tobytes() + target.tobytes())
