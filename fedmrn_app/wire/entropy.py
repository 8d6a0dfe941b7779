"""Entropy coding of small alphabets: models of symbols, and runs of symbols coded by them.

    runs of symbols, each under its model  -->  lanes of the coder  -->  words, uint32, then the states of the lanes

`kernels/symbol_rans.py` defines the coder. A single lane adds the words that its state needs, none to two. Eight
lanes are several times faster, and add their states as uint64, which takes about 50 bytes more: they are for long runs.
All numbers are little-endian.

A model is a table of integers that float64 and float32 operations lead to which IEEE 754 rounds exactly, so every
machine computes the same one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.kernels import symbol_rans
from fedmrn_app.kernels.symbol_rans import LOWEST, STEPS, Edges, Symbols, start_states

LANES = symbol_rans.MAX_LANES  # of long runs
LONG = 1 << 16  # bytes from which on the states of several lanes are less than a thousandth

Counts = Sequence[int]  # number of occurrences in a run of each symbol of the alphabet 0..n-1


# coder


def lanes_of(size: float) -> int:
    """Return the number of lanes for runs that take about `size` bytes."""
    return LANES if size >= LONG else 1


def encode_symbols(runs: Sequence[tuple[NDArray[np.integer], Edges]], lanes: int) -> bytes:
    """Encode runs of symbols, each under its model, in little more than their information content."""
    states, place = start_states(lanes), 0
    words = np.empty(1 + sum(run.size for run, _ in runs), np.uint32)
    for run, model in reversed(runs):  # the coder is a stack: what is pushed last is read first
        place = symbol_rans.encode(run.astype(np.uint16, copy=False), model, states, words, place)
    data = states.astype("<u8").tobytes()
    if lanes == 1:
        data = data[: 4 * -(-int(states[0]).bit_length() // 32)]
    return words[:place].astype("<u4").tobytes() + data


class SymbolReader:
    """Reads the runs of symbols that `encode_symbols` wrote, in their order."""

    def __init__(self, body: bytes | memoryview, lanes: int) -> None:
        """Read the states.

        Raises:
            PayloadError: the bytes are not those of this number of lanes.
        """
        if len(body) % 4:
            raise PayloadError(f"coded body has {len(body)} bytes, not a multiple of 4", code="length", value=len(body))
        tail = 8 * lanes if lanes > 1 else min(8, len(body))
        if len(body) < tail:
            raise PayloadError(
                f"coded body has {len(body)} bytes, less than its states", code="length", value=len(body)
            )
        end = len(body) - tail
        self._words = np.frombuffer(body[:end], "<u4").astype(np.uint32)
        self._states = np.frombuffer(bytes(body[end:]).ljust(8, b"\0"), "<u8").astype(np.uint64)
        self._place, self._start = self._words.size, start_states(lanes)
        if (self._states < LOWEST).any() if lanes > 1 else tail and not any(body[-4:]):
            raise PayloadError("coded body is malformed: a state is too small", code="malformed")

    def read(self, model: Edges, count: int) -> Symbols:
        """Return the next `count` symbols, which have this model, uint16 (count,)."""
        symbols = np.empty(count, np.uint16)
        self._place = symbol_rans.decode(model, self._states, self._words, self._place, symbols)
        return symbols

    def check_end(self, what: str) -> None:
        """Refuse words that are left after the last symbol, or that were missing.

        Raises:
            PayloadError: the lanes are not in their first states.
        """
        if self._place or (self._states != self._start).any():
            raise PayloadError(f"{what} has trailing or missing data", code="trailing")


def encode_runs(runs: Sequence[NDArray[np.integer]], counts: Sequence[Counts], lanes: int) -> bytes:
    """Encode runs of symbols in little more than their entropy; the reader needs the counts of each run."""
    pairs = zip(runs, counts, strict=True)
    return encode_symbols([(run, _model_of(count)) for run, count in pairs if _varies(count)], lanes)


def decode_runs(body: bytes | memoryview, counts: Sequence[Counts], lanes: int) -> list[Symbols]:
    """Return the runs with these symbol counts.

    Raises:
        PayloadError: `body` is not what `encode_runs` returns for runs with these counts.
    """
    reader = SymbolReader(body, lanes)
    runs = []
    for count in counts:
        total = sum(count)
        run = reader.read(_model_of(count), total) if _varies(count) else np.full(total, np.argmax(count), np.uint16)
        if np.bincount(run, minlength=len(count)).tolist() != list(count):
            raise PayloadError("coded body does not hold the symbols that it announces", code="symbols")
        runs.append(run)
    reader.check_end("coded body")
    return runs


# models


def categorical(weights: NDArray[np.float64]) -> Edges:
    """Return a model of symbols 0..n-1 with probabilities about in proportion to `weights`, all at least 2^-24.

    Args:
        weights: (n,), at least 0 and not all 0; n is from 2 to 512.

    Returns:
        The first step of each symbol, and `STEPS`; uint32 (n + 1,).
    """
    n = weights.size
    units = np.floor(weights / math.fsum(weights) * (STEPS - n)).astype(np.int64) + 1
    units[np.argmax(units)] += STEPS - units.sum()
    below = (np.cumsum(units) - units).astype(np.float32)  # whole numbers below 2^24 are exact
    # stored payloads have models that leave each symbol one more step, and round the rest to float32
    edges = (below * np.float32(STEPS - n) / np.float32(STEPS)).astype(np.uint32) + np.arange(n, dtype=np.uint32)
    return np.append(edges, np.uint32(STEPS))


def geometric_weights(largest: int, decay: int) -> NDArray[np.float64]:
    """Return weights of -largest..largest, which each step away from zero multiplies by `decay` / 256, rounded."""
    powers = [1.0]
    for _ in range(largest):
        powers.append(powers[-1] * (max(decay, 1) / 256))
    return np.array(powers[:0:-1] + powers)


@lru_cache(maxsize=1024)
def geometric_model(largest: int, decay: int) -> Edges:
    """Return the model of symbols 0..2 * largest with the probabilities of `geometric_weights`."""
    return categorical(geometric_weights(largest, decay))


def fit_decay(symbols: NDArray[np.int32]) -> int:
    """Return the decay, 1 to 255, that fits integers of which some are not zero."""
    return decay_of(float(np.abs(symbols).mean()))


def decay_of(mean: float) -> int:
    """Return the decay, 1 to 255, that fits integers of which the mean magnitude is known, above 0."""
    # the mean is 2 f / (1 - f^2) if probabilities fall by the factor f
    return min(255, max(1, round(256 * (math.sqrt(1 + mean * mean) - 1) / mean)))


def _varies(counts: Counts) -> bool:
    return max(counts) < sum(counts)


def _model_of(counts: Counts) -> Edges:
    return categorical(np.asarray(counts, np.float64))
