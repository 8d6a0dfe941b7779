"""How often small integers occur: a compiled loop."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from fedmrn_app.kernels.compiled import compiled_at_first_call
from fedmrn_app.layout import blocks

MOST = 255  # largest magnitude that is counted by value
_INTEGERS = types.Array(types.int32, 1, "C", readonly=True)


class Histogram(NamedTuple):
    """The symbols of a run, by the sign of their context.

    Attributes:
        counts: of the symbols -255 to 255, and of those beyond, for contexts below, at and above zero, int64 (3, 512).
        largest: the largest magnitude of a symbol.
    """

    counts: NDArray[np.int64]
    largest: int


def histogram(symbols: NDArray[np.integer], contexts: NDArray[np.integer] | None = None) -> Histogram:
    """Count symbols, (n,); their contexts are (n,), or all zero. Both fit int32."""
    counts, largest, none = np.zeros((3, 2 * MOST + 2), np.int64), 0, np.zeros(0, np.int32)
    for part in blocks(symbols.size):
        of_part = none if contexts is None else np.ascontiguousarray(contexts[part], np.int32)
        largest = max(largest, int(_count(np.ascontiguousarray(symbols[part], np.int32), of_part, counts)))
    return Histogram(counts, largest)


@compiled_at_first_call(types.int64(_INTEGERS, _INTEGERS, types.Array(types.int64, 2, "C")))
def _count(symbols: Any, contexts: Any, counts: Any) -> Any:
    largest, row, most = np.int64(0), 1, np.int64(MOST)
    zeros = np.zeros(3, np.int64)  # most symbols are zero, and waiting for one counter takes most of the time
    for i in range(symbols.size):
        if contexts.size:
            row = (contexts[i] > 0) - (contexts[i] < 0) + 1
        symbol = np.int64(symbols[i])
        if symbol == 0:
            zeros[row] += 1
            continue
        largest = max(largest, abs(symbol))
        counts[row, symbol + most if -most <= symbol <= most else 2 * most + 1] += 1
    for row in range(3):
        counts[row, most] += zeros[row]
    return largest
