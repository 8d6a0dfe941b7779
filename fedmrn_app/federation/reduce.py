"""Read replies and add them up, several at once, so that the sums are the same bit for bit on any number of threads.

A few replies are read at once, by a thread each. Then each thread adds pieces of all of them, in the clients' order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil

from fedmrn_app.federation.upload import CheckedUpload
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.method import Codec

MOST_COPIES = 4.0  # of the model, float32, that all threads together may take to read replies
_WAITING = 4  # replies a thread reads before they are added
_PIECE = 1 << 17  # elements of the sum that a thread adds at a time
_WORTH = 1 << 20  # elements of all replies for which a further thread is worth starting
_LEAST = 1 << 17  # elements of a reply below which threads would wait for the interpreter more than they do


def thread_count(codec: Codec, elements: int, replies: int) -> int:
    """How many threads read replies: one for each core of this process, if there is work and memory for so many.

    Args:
        codec: that reads them.
        elements: of a reply.
        replies: how many there are.
    """
    if codec.reading_copies is None or elements < _LEAST:
        return 1
    return max(1, min(cores(), int(MOST_COPIES / codec.reading_copies), elements * replies // _WORTH))


def cores() -> int:
    """How many cores this process may use."""
    process = psutil.Process()
    return len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else os.cpu_count() or 1


class Threads:
    """So many threads; a single one is that of the caller."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count) if count > 1 else None

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def map(self, function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
        """The function's results in the order of the values."""
        return list(map(function, values) if self._pool is None else self._pool.map(function, values))

    def batches(self, values: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """As many at a time as are read before they are added."""
        size = 1 if self._pool is None else _WAITING * self.count
        for start in range(0, len(values), size):
            yield values[start : start + size]

    def add(self, uploads: Sequence[CheckedUpload], total: Float32Array, dense_total: Float32Array) -> None:
        """Add uploads, each times its share, to the sums of vectors (d,) and of dense parts (m,), in their order."""

        def add_piece(start: int) -> None:
            with np.errstate(over="ignore"):  # whoever uses the sums checks them
                for upload in uploads:
                    upload.decoded.add_to(total[start : start + _PIECE], upload.share, start)

        self.map(add_piece, range(0, total.size, _PIECE))
        with np.errstate(over="ignore"):
            for upload in uploads:
                dense_total += upload.share * upload.dense
