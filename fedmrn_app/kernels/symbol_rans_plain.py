"""Coding of symbols by asymmetric numeral systems with tables: the plain form, which defines the bytes.

    symbol i of a run  -->  lane i mod L, a 64-bit state  -->  32-bit words, one stack for all L lanes
                                 ^
                 edges of the model: symbol s has the steps edges[s] to edges[s + 1] of 2^24

Duda 2013, "Asymmetric numeral systems", the variant with ranges (rANS); Giesen 2014, "Interleaved entropy coders". The
last symbol is encoded first, and the last word is decoded first. All operations are of integers.

A single lane starts with state 0, which takes no words. Several lanes start with state 2^32, because a lane cannot see
which words are its own.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

STEPS = 1 << 24  # steps of a probability
LOWEST = 1 << 32  # a lane below it reads a word, if one is left

Symbols = NDArray[np.uint16]
Edges = NDArray[np.uint32]
States = NDArray[np.uint64]
Words = NDArray[np.uint32]


def start_states(lanes: int) -> States:
    """Return the states before the first and after the last symbol, uint64 (lanes,)."""
    return np.full(lanes, LOWEST if lanes > 1 else 0, np.uint64)


def encode(symbols: Symbols, edges: Edges, states: States, words: Words, place: int) -> int:
    """Encode symbols: write words from `place` on, update the states, and return the place after the last word.

    Args:
        symbols: (n,), from 0 to m - 1.
        edges: (m + 1,), ascending from 0 to `STEPS`, no two alike; m is at least 2.
        states: (lanes,).
        words: more than `place` + n.
        place: number of words so far.
    """
    lanes = states.size
    for i in reversed(range(symbols.size)):
        x, start, end = int(states[i % lanes]), int(edges[symbols[i]]), int(edges[int(symbols[i]) + 1])
        share = end - start
        if x >= share << 40:
            words[place] = x & 0xFFFFFFFF
            place += 1
            x >>= 32
        states[i % lanes] = (x // share << 24) + x % share + start
    return place


def decode(edges: Edges, states: States, words: Words, place: int, out: Symbols) -> int:
    """Decode symbols into `out` (n,): read words before `place`, update the states, and return the new place.

    Lanes that need a word where none is left continue without it. Their states cannot return to the start states of
    several lanes, and a single lane needs no words at its end.
    """
    lanes, table = states.size, edges.tolist()
    for i in range(out.size):
        x = int(states[i % lanes])
        rest = x % STEPS
        symbol = bisect_right(table, rest) - 1
        x = (x >> 24) * (table[symbol + 1] - table[symbol]) + rest - table[symbol]
        if x < LOWEST and place > 0:
            place -= 1
            x = x << 32 | int(words[place])
        out[i], states[i % lanes] = symbol, x
    return place
