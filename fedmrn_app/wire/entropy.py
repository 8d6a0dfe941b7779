"""Entropy coding of small alphabets: constriction's asymmetric numeral system, and models of symbols.

    runs of symbols, each under its model  -->  AnsCoder, a stack  -->  words, uint32 little-endian

Duda 2013, "Asymmetric numeral systems". The coder is a stack, so the last symbol is encoded first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import constriction
import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError

_UNITS = 1 << 24  # steps of a probability in constriction's default coders

Counts = Sequence[int]  # number of occurrences in a run of each symbol of the alphabet 0..n-1


# coder


def encode_runs(runs: Sequence[NDArray[np.integer]], counts: Sequence[Counts]) -> bytes:
    """Encode runs of symbols in at most 32 bits more than their entropy; the reader needs the counts of each run."""
    coder = constriction.stream.stack.AnsCoder()
    for run, count in zip(reversed(runs), reversed(counts), strict=True):
        if _varies(count):
            coder.encode_reverse(run.astype(np.int32), _model_of(count))
    return write_words(coder)


def decode_runs(body: bytes | memoryview, counts: Sequence[Counts]) -> list[NDArray[np.int32]]:
    """Return the runs with these symbol counts.

    Raises:
        PayloadError: `body` is not what `encode_runs` returns for runs with these counts.
    """
    coder = read_words(body)
    runs = []
    for count in counts:
        total = sum(count)
        run = coder.decode(_model_of(count), total) if _varies(count) else np.full(total, np.argmax(count), np.int32)
        if np.bincount(run, minlength=len(count)).tolist() != list(count):
            raise PayloadError("coded body does not hold the symbols that it announces", code="symbols")
        runs.append(run)
    check_end(coder, "coded body", "symbol")
    return runs


def write_words(coder: Any) -> bytes:
    """Return the words of an AnsCoder as bytes."""
    words: bytes = coder.get_compressed().astype("<u4").tobytes()
    return words


def read_words(body: bytes | memoryview) -> Any:
    """Return an AnsCoder that holds the words of `body`.

    Raises:
        PayloadError: the bytes are not words of a coder.
    """
    if len(body) % 4:
        raise PayloadError(f"coded body has {len(body)} bytes, not a multiple of 4", code="length", value=len(body))
    try:
        return constriction.stream.stack.AnsCoder(np.frombuffer(body, "<u4").astype(np.uint32))
    except ValueError as error:
        raise PayloadError(f"coded body is malformed: {error}", code="malformed") from error


def check_end(coder: Any, what: str, symbol: str) -> None:
    """Refuse words that are left after the last symbol.

    Raises:
        PayloadError: the coder is not empty.
    """
    if not coder.is_empty():
        raise PayloadError(f"{what} continues after its last {symbol}", code="trailing")


# models


def categorical(weights: NDArray[np.float64]) -> Any:
    """Return a model of symbols 0..n-1 with probabilities in proportion to `weights`, all at least 2^-24.

    The probabilities are whole multiples of 2^-24 and their sum is exactly 1. Otherwise constriction 0.5 would round
    its float32 sums, which could leave a symbol without a code and make the code depend on the machine.
    """
    units = np.floor(weights / math.fsum(weights) * (_UNITS - weights.size)).astype(np.int64) + 1
    units[np.argmax(units)] += _UNITS - units.sum()
    return constriction.stream.model.Categorical((units / _UNITS).astype(np.float32), perfect=False)


def geometric_weights(largest: int, decay: int) -> NDArray[np.float64]:
    """Return weights of -largest..largest, which each step away from zero multiplies by `decay` / 256, rounded."""
    powers = [1.0]
    for _ in range(largest):
        powers.append(powers[-1] * (max(decay, 1) / 256))
    return np.array(powers[:0:-1] + powers)


@lru_cache(maxsize=1024)
def geometric_model(largest: int, decay: int) -> Any:
    """Return the model of symbols 0..2 * largest with the probabilities of `geometric_weights`."""
    return categorical(geometric_weights(largest, decay))


def fit_decay(symbols: NDArray[np.int32]) -> int:
    """Return the decay, 1 to 255, that fits integers of which some are not zero."""
    mean = float(np.abs(symbols).mean())  # 2 f / (1 - f^2) if probabilities fall by the factor f
    return min(255, max(1, round(256 * (math.sqrt(1 + mean * mean) - 1) / mean)))


def _varies(counts: Counts) -> bool:
    return max(counts) < sum(counts)


def _model_of(counts: Counts) -> Any:
    return categorical(np.asarray(counts, np.float64))
