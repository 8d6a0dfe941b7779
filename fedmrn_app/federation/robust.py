"""Robust means: what a few hostile clients cannot move far, whatever they send.

- Coordinate-wise median and trimmed mean: Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal
  Statistical Rates", Definitions 1 and 2.
- Krum: Blanchard et al. 2017, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", section 4.

Every client counts the same. The results do not depend on the order of the clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.federation.pipeline import PostProcessor, RoundSums
from fedmrn_app.federation.protocol import Aggregation
from fedmrn_app.federation.upload import CheckedUpload
from fedmrn_app.layout import Float32Array

HOSTILE_SHARE = 0.2  # of the replies of a round that may be hostile
_PIECE = 1 << 17  # elements of all replies that are compared at a time; a multiple of the BLOCK of contributions


def hostile_count(replies: int) -> int:
    """Return how many of the replies of a round are taken for hostile: a fifth, at least one, and less than half."""
    return min(max(1, int(HOSTILE_SHARE * replies)), (replies - 1) // 2)


def trimmed_mean(values: Float32Array, trimmed: int) -> Float32Array:
    """Return the mean of each column without its largest and smallest values.

    Args:
        values: float32 (n, d), a row for each client.
        trimmed: number of values that are left out at each end, less than n / 2; (n - 1) // 2 gives the median.
    """
    kept = np.sort(values, axis=0)[trimmed : len(values) - trimmed]
    mean: Float32Array = kept.mean(axis=0, dtype=np.float64).astype(np.float32)
    return mean


def krum(distances: NDArray[np.float64], hostile: int) -> list[int]:
    """Return the clients whose nearest n - hostile - 2 others are nearest; several only where they are equally near.

    Args:
        distances: float64 (n, n), squared distances between the clients' updates, symmetric.
        hostile: number of clients that may be hostile.
    """
    nearest = max(1, len(distances) - hostile - 2)
    scores = np.sort(distances, axis=1)[:, 1 : nearest + 1].sum(axis=1)  # the first one is that to itself
    return np.flatnonzero(scores == scores.min()).tolist()


class RobustMean(PostProcessor):
    """Replace the sums by a robust mean of the same replies, which it keeps until the round is closed."""

    def __init__(self, aggregation: Aggregation) -> None:
        self.aggregation = aggregation
        self.uploads: list[CheckedUpload] = []

    def observe(self, client: int, upload: CheckedUpload) -> None:
        """Keep the reply."""
        self.uploads.append(upload)

    def finish(self, sums: RoundSums) -> None:
        """Compute the robust mean; without replies the sums stay zero."""
        if not self.uploads:
            return
        count = len(self.uploads)
        combine = self._krum(sums) if self.aggregation == "krum" else self._trim(count)
        for part, values in self._pieces(sums):
            part[:] = combine(values)

    def _trim(self, count: int) -> Callable[[Float32Array], Float32Array]:
        trimmed = (count - 1) // 2 if self.aggregation == "median" else hostile_count(count)
        return lambda values: trimmed_mean(values, trimmed)

    def _krum(self, sums: RoundSums) -> Callable[[Float32Array], Float32Array]:
        count = len(self.uploads)
        distances = np.zeros((count, count))
        for _, values in self._pieces(sums):
            exact = values.astype(np.float64)
            for row in range(count):
                found = np.square(exact[row + 1 :] - exact[row]).sum(axis=1)
                distances[row, row + 1 :] += found
                distances[row + 1 :, row] += found
        chosen = krum(distances, hostile_count(count))
        return lambda values: trimmed_mean(values[chosen], 0)

    def _pieces(self, sums: RoundSums) -> Iterator[tuple[Float32Array, Float32Array]]:
        """Yield pieces of both sums, (d,), with the values of all replies for them, float32 (n, d)."""
        for first in range(0, sums.total.size, _PIECE):
            part = sums.total[first : first + _PIECE]
            values = np.zeros((len(self.uploads), part.size), np.float32)
            for row, upload in zip(values, self.uploads, strict=True):
                upload.contribution.add_to(row, np.float32(1), first)
            yield part, values
        yield sums.dense, np.stack([upload.dense for upload in self.uploads])
