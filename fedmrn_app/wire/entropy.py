"""Entropy coding of small alphabets by asymmetric numeral systems (constriction's AnsCoder).

A coded sequence is the words of one coder. Its symbols come in runs, each with a model of its own that follows from the
integer counts of the run's symbols; the counts are sent beside it by whoever calls.
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

_UNITS = 1 << 24  # the precision of constriction's default coders

Counts = Sequence[int]  # how often each symbol of the alphabet 0..n-1 occurs in a run


def encode_runs(runs: Sequence[NDArray[np.integer]], counts: Sequence[Counts]) -> bytes:
    """Encode runs of symbols, `counts[i]` being the symbol counts of `runs[i]`; at most 32 bits over their entropy."""
    coder = constriction.stream.stack.AnsCoder()
    for run, count in zip(reversed(runs), reversed(counts), strict=True):
        if _varies(count):
            coder.encode_reverse(run.astype(np.int32), _model(count))
    return write_words(coder)


def decode_runs(body: bytes | memoryview, counts: Sequence[Counts]) -> list[NDArray[np.int32]]:
    """Return the runs with these symbol counts.

    Raises:
        PayloadError: `body` is not what `encode_runs` makes of runs with these counts.
    """
    coder = read_words(body)
    runs = []
    for count in counts:
        total = sum(count)
        run = coder.decode(_model(count), total) if _varies(count) else np.full(total, np.argmax(count), np.int32)
        if np.bincount(run, minlength=len(count)).tolist() != list(count):
            raise PayloadError("coded body does not hold the symbols it announces")
        runs.append(run)
    if not coder.is_empty():
        raise PayloadError("coded body goes on after its last symbol")
    return runs


def write_words(coder: Any) -> bytes:
    """Return the words of an AnsCoder as bytes."""
    words: bytes = coder.get_compressed().astype("<u4").tobytes()
    return words


def read_words(body: bytes | memoryview) -> Any:
    """Return an AnsCoder that holds the words of `body`.

    Raises:
        PayloadError: the bytes are no words of a coder.
    """
    if len(body) % 4:
        raise PayloadError(f"coded body has {len(body)} bytes, not a multiple of 4")
    try:
        return constriction.stream.stack.AnsCoder(np.frombuffer(body, "<u4").astype(np.uint32))
    except ValueError as error:
        raise PayloadError(f"coded body is malformed: {error}") from error


def _varies(counts: Counts) -> bool:
    return max(counts) < sum(counts)


def _model(counts: Counts) -> object:
    """A model whose probabilities depend on the counts alone."""
    return categorical(np.asarray(counts, np.float64))


def categorical(weights: NDArray[np.float64]) -> object:
    """A model of symbols 0..n-1 with probabilities in proportion to `weights`, none of them below 2^-24.

    The probabilities are whole multiples of 2^-24 with a sum of exactly 1: constriction 0.5 finds room for every symbol
    only if its float32 sums do not round, and so no sum depends on the machine.
    """
    shares = np.floor(weights / math.fsum(weights) * (_UNITS - weights.size)).astype(np.int64) + 1
    shares[np.argmax(shares)] += _UNITS - shares.sum()
    return constriction.stream.model.Categorical((shares / _UNITS).astype(np.float32), perfect=False)


def falling(largest: int, fall: int) -> NDArray[np.float64]:
    """Weights of -largest..largest that fall by the factor `fall` / 256 with each step from zero, exactly rounded."""
    powers = [1.0]
    for _ in range(largest):
        powers.append(powers[-1] * (max(fall, 1) / 256))
    return np.array(powers[:0:-1] + powers)


@lru_cache(maxsize=1024)
def falling_model(largest: int, fall: int) -> object:
    """The model of symbols 0..2 * largest whose probabilities are those of `falling`."""
    return categorical(falling(largest, fall))


def fall_of(symbols: NDArray[np.int32]) -> int:
    """The fall, 1 to 255, that suits whole numbers of which some are not zero."""
    mean = float(np.abs(symbols).mean())  # 2 f / (1 - f^2) if probabilities fall by the factor f
    return min(255, max(1, round(256 * (math.sqrt(1 + mean * mean) - 1) / mean)))
