"""The coder of bits of `fedmrn_app/kernels/mask_rans.py` in plain Python, with the same arguments."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.kernels.mask_rans import GRAIN, LOWEST, STEPS, Evidence, States, Words
from fedmrn_app.layout import Float32Array


def count_runs(evidence: Evidence, bits: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    effects = (evidence.size * np.float32(GRAIN)).astype(np.int64)
    if evidence.sign is not None:
        effects *= evidence.sign.astype(np.int64)
    return bits.sum(1, np.int64), (bits * effects).sum(1)


def find_shares(
    evidence: Evidence, c: Float32Array, curvature: np.float32, effect: Float32Array, density: Float32Array
) -> NDArray[np.uint16]:
    a = evidence.size * (np.float32(1) + curvature) / (evidence.size * curvature + np.float32(1))
    sign = np.float32(1) if evidence.sign is None else evidence.sign
    trend = np.float32(0) if evidence.trend is None else evidence.trend
    q = effect[:, None] * sign
    p = a * c[2] + c[1] + trend * c[4] + q * c[6] + density[:, None] * c[8]
    p = p * a + (c[0] + np.float32(0.5)) + trend * c[3] + q * c[5] + density[:, None] * c[7]
    shares: NDArray[np.uint16] = np.clip(p, 1, STEPS - 1).astype(np.uint16).reshape(-1)
    return shares


def encode(bits: NDArray[np.uint8], shares: NDArray[np.uint16], states: States, words: Words, end: int) -> int:
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
