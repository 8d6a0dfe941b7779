"""Bits by asymmetric numeral systems, each with a probability of its own: the plain form, which defines the bytes.

Bit i of a part belongs to lane i mod L; each of the L lanes has a state in [2^16, 2^32), and all share one string of
16-bit words. The share of a bit is P(bit = 1) in steps of 2^-12, from 1 to 4095 (Duda 2013, the variant with ranges;
Giesen 2014, the interleaving). The last bit is encoded first, so that the first one is decoded first.

The shares come from what both sides know. Which operations decide them: +, -, *, / of float32, each rounded as IEEE 754
says, sums of whole numbers, and their conversion to float32; all the rest is whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array

STEPS = 1 << 12  # of probability
LOWEST = 1 << 16  # a lane's state at the end, and the least it can be
GRAIN = 128  # steps of size that are counted

Words = NDArray[np.uint16]
States = NDArray[np.uint32]


@dataclass(frozen=True)
class Evidence:
    """What is known of some bits that are coded together, each array of shape (runs, width): a part of some runs.

    Attributes:
        size: float32 in [0, 1].
        sign: float32 of -1 and 1, or None.
        trend: float32 in [-1, 1], or None.
        flipped: bool, which bits are turned round before they are coded, or None; the rest is about bits turned so.
    """

    size: Float32Array
    sign: Float32Array | None = None
    trend: Float32Array | None = None
    flipped: NDArray[np.bool_] | None = None


def count_runs(evidence: Evidence, bits: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of the bits of each run, int64 (runs,): how many are set, and the sum of their sizes with their signs.

    Args:
        evidence: of the bits.
        bits: as they are coded, 0 and 1, (runs, width).
    """
    effects = (evidence.size * np.float32(GRAIN)).astype(np.int64)
    if evidence.sign is not None:
        effects *= evidence.sign.astype(np.int64)
    return bits.sum(1, np.int64), (bits * effects).sum(1)


def find_shares(
    evidence: Evidence, c: Float32Array, bend: np.float32, push: Float32Array, density: Float32Array
) -> NDArray[np.uint16]:
    """The shares of bits, uint16 (runs * width,).

    Args:
        evidence: of the bits.
        c: nine coefficients, times the number of steps: of 1, a, a^2, then for trend, push and density q of q and a q,
            with a the bent size.
        bend: how much sizes are bent, at least 0.
        push: of each run (runs,), to be taken times the sign.
        density: of each run (runs,).
    """
    a = evidence.size * (np.float32(1) + bend) / (evidence.size * bend + np.float32(1))
    sign = np.float32(1) if evidence.sign is None else evidence.sign
    trend = np.float32(0) if evidence.trend is None else evidence.trend
    q = push[:, None] * sign
    p = a * c[2] + c[1] + trend * c[4] + q * c[6] + density[:, None] * c[8]
    p = p * a + (c[0] + np.float32(0.5)) + trend * c[3] + q * c[5] + density[:, None] * c[7]
    shares: NDArray[np.uint16] = np.clip(p, 1, STEPS - 1).astype(np.uint16).reshape(-1)
    return shares


def encode(bits: NDArray[np.uint8], shares: NDArray[np.uint16], states: States, words: Words, end: int) -> int:
    """Encode bits (n,); write words before place `end`, change the states, and return where the words now begin."""
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
    """Decode bits into `out` (n,), reading words from `place` on, and return the place of the next; -1 if too few."""
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
