"""The coder of symbols of another library, constriction, which gives the same bytes as a single lane."""

from __future__ import annotations

import math
from typing import Any

import constriction
import numpy as np
from numpy.typing import NDArray

from fedmrn_app.kernels.symbol_rans import STEPS


def peer_model(weights: NDArray[np.float64]) -> Any:
    """Return constriction's model with about these probabilities; `categorical` makes the same table of it."""
    units = np.floor(weights / math.fsum(weights) * (STEPS - weights.size)).astype(np.int64) + 1
    units[np.argmax(units)] += STEPS - units.sum()
    return constriction.stream.model.Categorical((units / STEPS).astype(np.float32), perfect=False)


def peer_encode(symbols: NDArray[np.integer], weights: NDArray[np.float64]) -> bytes:
    """Return constriction's bytes."""
    coder = constriction.stream.stack.AnsCoder()
    coder.encode_reverse(symbols.astype(np.int32), peer_model(weights))
    words: bytes = coder.get_compressed().astype("<u4").tobytes()
    return words


def peer_decode(data: bytes, weights: NDArray[np.float64], count: int) -> NDArray[np.int32]:
    """Return the symbols of constriction's bytes, int32 (count,)."""
    coder = constriction.stream.stack.AnsCoder(np.frombuffer(data, "<u4").astype(np.uint32))
    symbols: NDArray[np.int32] = coder.decode(peer_model(weights), count)
    return symbols
