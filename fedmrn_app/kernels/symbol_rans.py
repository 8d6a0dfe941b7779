"""Coding of symbols by asymmetric numeral systems with tables: compiled loops.

    symbol i of a run  -->  lane i mod L, a 64-bit state  -->  32-bit words, one stack for all L lanes
                                 ^
                 edges of the model: symbol s has the steps edges[s] to edges[s + 1] of 2^24

Duda 2013, "Asymmetric numeral systems", the variant with ranges (rANS); Giesen 2014, "Interleaved entropy coders". The
last symbol is encoded first, and the last word is decoded first. All operations are of integers.

A single lane starts with state 0, which takes no words. Several lanes start with state 2^32, because a lane cannot see
which words are its own.

`tests/plain/symbol_rans.py` does the same in plain Python, with the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from fedmrn_app.kernels.compiled import compile_loop

STEPS = 1 << 24  # steps of a probability
LOWEST = 1 << 32  # a lane below it reads a word, if one is left
MAX_LANES = 8

Symbols = NDArray[np.uint16]
Edges = NDArray[np.uint32]
States = NDArray[np.uint64]
Words = NDArray[np.uint32]

_MAX_SLOT_BITS = 12
_ONE_SLOT = np.zeros(1, np.uint16)
_SYMBOLS, _EDGES = types.Array(types.uint16, 1, "C"), types.Array(types.uint32, 1, "C")
_STATES, _WORDS = types.Array(types.uint64, 1, "C"), types.Array(types.uint32, 1, "C")


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

    Raises:
        ValueError: a symbol has no code, or the words after `place` may not be enough.
    """
    if symbols.size and int(symbols.max()) >= edges.size - 1:
        raise ValueError(f"symbol {symbols.max()} has no code among {edges.size - 1}")
    if not 0 <= place < words.size - symbols.size:
        raise ValueError(f"{symbols.size} symbols do not fit after word {place} of {words.size}")
    return int(_encode(states.size)(symbols, edges, states, words, place))


def decode(edges: Edges, states: States, words: Words, place: int, out: Symbols) -> int:
    """Decode symbols into `out` (n,): read words before `place`, update the states, and return the new place.

    Lanes that need a word where none is left continue without it. Their states cannot return to the start states of
    several lanes, and a single lane needs no words at its end.

    Raises:
        ValueError: there are fewer words than `place`.
    """
    if not 0 <= place <= words.size:
        raise ValueError(f"cannot decode from word {place} of {words.size}")
    bits, first = 0, _ONE_SLOT
    if out.size >= 256:  # below, a table takes longer to make than it saves
        bits = min(out.size.bit_length() - 4, _MAX_SLOT_BITS)
        slots = np.arange(1 << bits, dtype=np.uint32) << np.uint32(24 - bits)
        first = np.searchsorted(edges[1:], slots, side="right").astype(np.uint16)
    return int(_decode(states.size)(edges, first, 24 - bits, states, words, place, out))


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _push(x: Any, start: Any, end: Any) -> Any:
    """Return the next state of a lane, and whether the lowest 32 bits of the last one are written as a word.

    Only numbers are passed: Numba would count the references of arrays at each call.
    """
    start = np.uint64(start)
    share = np.uint64(end) - start
    full = x >= share << np.uint64(40)
    rest = x >> np.uint64(32)
    x = rest if full else x
    return ((x // share) << np.uint64(24)) | (x % share + start), np.uint64(full)


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _pop(x: Any, edges: Any, first: Any, shift: Any, word: Any) -> Any:
    """Return the symbol, the next state of a lane, and whether the word was used.

    Both outcomes are computed before the choice, so that LLVM emits no branch, which would be mispredicted.
    """
    one = np.uint64(1)
    rest = x & np.uint64(STEPS - 1)
    symbol = np.uint64(first[rest >> shift])  # of the slot's first step
    while np.uint64(edges[symbol + one]) <= rest:
        symbol += one
    start = np.uint64(edges[symbol])
    x = (x >> np.uint64(24)) * (np.uint64(edges[symbol + one]) - start) + (rest - start)
    short = x < np.uint64(LOWEST)
    longer = x << np.uint64(32) | np.uint64(word)
    x = longer if short else x
    return symbol, x, np.uint64(short)


@cache
def _encode(lanes: int) -> Callable[..., Any]:
    u32 = np.uint32
    u64 = np.uint64  # for places and counts: with signed ones Numba checks for negative indices

    def encode(symbols: Any, edges: Any, states: Any, words: Any, place: Any) -> Any:
        i, place, width, one = u64(symbols.size), u64(place), u64(lanes), u64(1)
        while i % width:
            i -= one
            s, x = u64(symbols[i]), states[i % width]
            words[place] = u32(x)
            states[i % width], used = _push(x, edges[s], edges[s + one])
            place += used
        x0 = states[0]  # variables stay in registers
        if lanes == 1:
            while i > u64(0):
                i -= one
                s = u64(symbols[i])
                start = u64(edges[s])
                share = u64(edges[s + one]) - start
                if x0 >= share << u64(40):  # one lane waits for each step, and a predicted branch takes no time
                    words[place] = u32(x0)
                    place += one
                    x0 >>= u64(32)
                x0 = ((x0 // share) << u64(24)) | (x0 % share + start)
        else:
            x1, x2, x3, x4, x5, x6, x7 = states[1], states[2], states[3], states[4], states[5], states[6], states[7]
            while i > u64(0):
                i -= u64(8)
                s = u64(symbols[i + u64(7)])
                words[place] = u32(x7)
                x7, used = _push(x7, edges[s], edges[s + one])
                place += used
                s = u64(symbols[i + u64(6)])
                words[place] = u32(x6)
                x6, used = _push(x6, edges[s], edges[s + one])
                place += used
                s = u64(symbols[i + u64(5)])
                words[place] = u32(x5)
                x5, used = _push(x5, edges[s], edges[s + one])
                place += used
                s = u64(symbols[i + u64(4)])
                words[place] = u32(x4)
                x4, used = _push(x4, edges[s], edges[s + one])
                place += used
                s = u64(symbols[i + u64(3)])
                words[place] = u32(x3)
                x3, used = _push(x3, edges[s], edges[s + one])
                place += used
                s = u64(symbols[i + u64(2)])
                words[place] = u32(x2)
                x2, used = _push(x2, edges[s], edges[s + one])
                place += used
                s = u64(symbols[i + u64(1)])
                words[place] = u32(x1)
                x1, used = _push(x1, edges[s], edges[s + one])
                place += used
                s = u64(symbols[i])
                words[place] = u32(x0)
                x0, used = _push(x0, edges[s], edges[s + one])
                place += used
            states[1], states[2], states[3], states[4] = x1, x2, x3, x4
            states[5], states[6], states[7] = x5, x6, x7
        states[0] = x0
        return np.int64(place)

    return compile_loop(types.int64(_SYMBOLS, _EDGES, _STATES, _WORDS, types.int64), encode)


@cache
def _decode(lanes: int) -> Callable[..., Any]:
    u64 = np.uint64

    def decode(edges: Any, first: Any, shift: Any, states: Any, words: Any, place: Any, out: Any) -> Any:
        i, count, place, width, shift = u64(0), u64(out.size), u64(place), u64(lanes), u64(shift)
        x0, one = states[0], u64(1)
        if lanes == 1:
            while i < count and place > u64(0):
                out[i], x0, used = _pop(x0, edges, first, shift, words[place - one])
                place -= used
                i += one
        else:
            x1, x2, x3, x4, x5, x6, x7 = states[1], states[2], states[3], states[4], states[5], states[6], states[7]
            while i + u64(8) <= count and place >= u64(8):  # no lane can run out of words
                out[i], x0, used = _pop(x0, edges, first, shift, words[place - one])
                place -= used
                out[i + one], x1, used = _pop(x1, edges, first, shift, words[place - one])
                place -= used
                out[i + u64(2)], x2, used = _pop(x2, edges, first, shift, words[place - one])
                place -= used
                out[i + u64(3)], x3, used = _pop(x3, edges, first, shift, words[place - one])
                place -= used
                out[i + u64(4)], x4, used = _pop(x4, edges, first, shift, words[place - one])
                place -= used
                out[i + u64(5)], x5, used = _pop(x5, edges, first, shift, words[place - one])
                place -= used
                out[i + u64(6)], x6, used = _pop(x6, edges, first, shift, words[place - one])
                place -= used
                out[i + u64(7)], x7, used = _pop(x7, edges, first, shift, words[place - one])
                place -= used
                i += u64(8)
            states[1], states[2], states[3], states[4] = x1, x2, x3, x4
            states[5], states[6], states[7] = x5, x6, x7
        states[0] = x0
        while i < count:  # words may run out: a lane that needs one continues without it
            word = words[place - one] if place > u64(0) else np.uint32(0)
            out[i], x, used = _pop(states[i % width], edges, first, shift, word)
            if place > u64(0):
                place -= used
            elif used:
                x >>= u64(32)
            states[i % width] = x
            i += one
        return np.int64(place)

    loop = types.int64(_EDGES, _SYMBOLS, types.int64, _STATES, _WORDS, types.int64, _SYMBOLS)
    return compile_loop(loop, decode)
