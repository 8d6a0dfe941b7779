"""The rows of a client that are held out for evaluation: the client does not train on them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.data.samples import Rows


def held_count(count: int, share: float) -> int:
    """Return how many of `count` rows are held out: about the share, and of two or more rows at least one."""
    return 0 if count < 2 else min(max(round(share * count), 1), count - 1)


def held_rows(count: int, share: float, seed: int, labels: Rows | None, groups: Rows | None) -> NDArray[np.bool_]:
    """Return which of `count` rows are held out, bool (count,).

    Rows with labels are drawn so that each label has its share, to one row. Rows with natural groups, such as the
    windows of a text, overlap with their neighbours: there the last rows of each group are held out.

    Args:
        count: number of rows.
        share: share that is held out.
        seed: draws the rows.
        labels: label of each row, int64 (count,); None without.
        groups: natural group of each row, int64 (count,); None without.
    """
    held = np.zeros(count, np.bool_)
    held_out = held_count(count, share)
    if not held_out:
        return held
    random = np.random.Generator(np.random.Philox(key=seed))
    if groups is not None:
        order = np.argsort(groups, kind="stable")
        _, places, sizes = np.unique(groups[order], return_inverse=True, return_counts=True)
        ends = np.cumsum(sizes)[places]
        kept = np.array([held_count(size, share) for size in sizes.tolist()])[places]
        held[order[np.arange(count) >= ends - kept]] = True
        return held
    order = random.permutation(count)
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    # systematic sampling: every (count / held_out)-th row, from a random start
    steps = np.floor((np.arange(held_out) + random.random()) * count / held_out).astype(np.int64)
    held[order[np.minimum(steps, count - 1)]] = True
    return held
