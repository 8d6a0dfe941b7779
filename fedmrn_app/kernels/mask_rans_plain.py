"""Coding of bits with a probability each, by asymmetric numeral systems: the plain form, which defines the bytes.

    bit i of a part  -->  lane i mod L, a state in [2^16, 2^32)  -->  16-bit words, one sequence for all L lanes
                                   ^
                  share of the bit: P(bit = 1) in steps of 2^-12, from 1 to 4095

Duda 2013, "Asymmetric numeral systems", the variant with ranges (rANS); Giesen 2014, "Interleaved entropy coders". The
last bit is encoded first, so that the first one is decoded first.

Both sides compute the shares from side information. Only integer operations and +, -, *, / of float32, which IEEE 754
rounds exactly, lead to the shares, so every machine computes the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array

STEPS = 1 << 12  # steps of a probability
LOWEST = 1 << 16  # the least state of a lane, and its state before the first and after the last bit
GRAIN = 128  # steps of a size, where sizes are summed

Words = NDArray[np.uint16]
States = NDArray[np.uint32]


@dataclass(frozen=True)
class Evidence:
    """The side information of bits that are coded together, a block of runs; each array has the shape (runs, width).

    Attributes:
        size: float32 in [0, 1].
        sign: float32 of -1 and 1, the direction in which a set bit moves its weight; None if always the same.
        trend: float32 in [-1, 1], the direction in which the weight is expected to move times the sign, or None.
        flipped: bool, the bits that are inverted before they are coded, or None; other fields refer to inverted bits.
    """

    size: Float32Array
    sign: Float32Array | None = None
    trend: Float32Array | None = None
    flipped: NDArray[np.bool_] | None = None


def count_runs(evidence: Evidence, bits: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of set bits of each run, and the sum of their sizes times signs in steps; both int64 (runs,).

    Args:
        evidence: the side information of the bits.
        bits: the bits as they are coded, 0 and 1, (runs, width).
    """
    effects = (evidence.size * np.float32(GRAIN)).astype(np.int64)
    if evidence.sign is not None:
        effects *= evidence.sign.astype(np.int64)
    return bits.sum(1, np.int64), (bits * effects).sum(1)


def find_shares(
    evidence: Evidence, c: Float32Array, curvature: np.float32, effect: Float32Array, density: Float32Array
) -> NDArray[np.uint16]:
    """Return the shares of bits, uint16 (runs * width,).

    A share is linear in 1, a and a^2, where a = (1 + k) s / (1 + k s) with size s and curvature k, and in q and a q for
    each predictor q: the trend, the effect times the sign, and the density.

    Args:
        evidence: the side information of the bits.
        c: float32 (9,), the coefficients of 1, a, a^2 and then of q and a q for each predictor, times `STEPS`.
        curvature: k, at least 0.
        effect: float32 (runs,), the mean of size * sign * bit of each run so far.
        density: float32 (runs,), the mean of the bits of each run's row so far, less that of the tensor.
    """
    a = evidence.size * (np.float32(1) + curvature) / (evidence.size * curvature + np.float32(1))
    sign = np.float32(1) if evidence.sign is None else evidence.sign
    trend = np.float32(0) if evidence.trend is None else evidence.trend
    q = effect[:, None] * sign
    p = a * c[2] + c[1] + trend * c[4] + q * c[6] + density[:, None] * c[8]
    p = p * a + (c[0] + np.float32(0.5)) + trend * c[3] + q * c[5] + density[:, None] * c[7]
    shares: NDArray[np.uint16] = np.clip(p, 1, STEPS - 1).astype(np.uint16).reshape(-1)
    return shares


def encode(bits: NDArray[np.uint8], shares: NDArray[np.uint16], states: States, words: Words, end: int) -> int:
    """Encode bits (n,): write words before place `end`, update the states, and return the place of the first word."""
    lanes = states.size
    for i in reversed(range(bits.size)):
        x, share, bit = int(states[i % lanes]), int(shares[i]), int(bits[i])
        width, start = (share, 0) if bit else (STEPS - share, share)
        if x >= width << 20:
            end -= 1
            words[end] = x & 0xFFFF
            x >>= 16
        states[i % lanes] = x // width * STEPS + x % width + start
    return end


def decode(shares: NDArray[np.uint16], states: States, words: Words, place: int, out: NDArray[np.uint8]) -> int:
    """Decode bits into `out` (n,): read words from `place` on and update the states.

    Returns:
        The place of the next word, or -1 if the words end before the bits do.
    """
    lanes = states.size
    for i in range(out.size):
        x, share = int(states[i % lanes]), int(shares[i])
        rest = x % STEPS
        out[i] = bit = rest < share
        x = share * (x // STEPS) + rest if bit else (STEPS - share) * (x // STEPS) + rest - share
        if x < LOWEST:
            if place >= words.size:
                return -1
            x = x << 16 | int(words[place])
            place += 1
        states[i % lanes] = x
    return place
