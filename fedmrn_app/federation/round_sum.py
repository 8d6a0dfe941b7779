"""Decode replies and add them up on several threads, with sums that do not depend on the number of threads.

Each thread decodes a few replies. Then each thread adds one piece of all of them, in the order of the clients, so that
every element sees the same additions in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from fedmrn_app.federation.upload import CheckedUpload
from fedmrn_app.layout import LARGE, Float32Array, Layout
from fedmrn_app.methods.method import Codec
from fedmrn_app.system.cores import cores

MAX_COPIES = 4.0  # memory that all threads together may use to decode, in float32 copies of a large model
_MIN_BYTES = 1 << 28  # what they may use in any case
_BATCH = 4  # replies that a thread decodes before they are added
_PIECE = 1 << 17  # elements of the sum that a thread adds at a time
_MIN_WORK = 1 << 20  # elements of all replies for which one more thread is worth starting
_MIN_ELEMENTS = 1 << 17  # smaller replies make threads wait for the interpreter more than they compute

T = TypeVar("T")
R = TypeVar("R")


class AdditionError(Exception):
    """A contribution could not be added, so that the sums are no longer usable.

    Attributes:
        index: position of its upload among those that were added.
        error: what its codec raised.
    """

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


def thread_count(codec: Codec, elements: int, replies: int) -> int:
    """Return the number of threads that decode replies: at most one per core, fewer where work or memory is scarce.

    Args:
        codec: of the method.
        elements: number of weights of a reply.
        replies: number of replies.
    """
    copies = codec.limits(Layout(((elements,),))).read_copies
    if copies is None or elements < _MIN_ELEMENTS:
        return 1
    allowed = max(MAX_COPIES, _MIN_BYTES / (4 * elements))
    return max(1, min(cores(), int(allowed / copies), elements * replies // _MIN_WORK))


class ReducePool:
    """A pool of threads; with `count=1` the caller's thread does the work."""

    def __init__(self, count: int, elements: int = 0) -> None:
        """Make the pool for replies of so many weights."""
        self.count = count
        self._batch = _BATCH if elements < LARGE else 1  # a decoded reply may be as large as the model
        self._pool = ThreadPoolExecutor(count) if count > 1 else None

    def __enter__(self) -> ReducePool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def map(self, function: Callable[[T], R], values: Sequence[T]) -> list[R]:
        """Return the function's results in the order of the values."""
        return list(map(function, values) if self._pool is None else self._pool.map(function, values))

    def batches(self, values: Sequence[T]) -> Iterator[Sequence[T]]:
        """Yield the values in batches that are decoded before they are added."""
        size = 1 if self._pool is None else self._batch * self.count
        for start in range(0, len(values), size):
            yield values[start : start + size]

    def add(self, uploads: Sequence[CheckedUpload], total: Float32Array, dense_total: Float32Array) -> None:
        """Add weighted uploads, in their order, to the sums of vectors (d,) and of dense parts (m,).

        Raises:
            AdditionError: a codec failed; both sums are unusable.
        """

        def add_piece(start: int) -> None:
            piece = total[start : start + _PIECE]
            for index, upload in enumerate(uploads):
                try:
                    with np.errstate(over="ignore"):  # the server's step checks the sums
                        upload.contribution.add_to(piece, upload.weight, start)
                except Exception as error:
                    raise AdditionError(index, error) from error

        self.map(add_piece, range(0, total.size, _PIECE))
        with np.errstate(over="ignore"):
            for upload in uploads:
                dense_total += upload.weight * upload.dense
