"""The coder of symbols of `fedmrn_app/kernels/symbol_rans.py` in plain Python, with the same arguments."""

from __future__ import annotations

from bisect import bisect_right

from fedmrn_app.kernels.symbol_rans import LOWEST, STEPS, Edges, States, Symbols, Words


def encode(symbols: Symbols, edges: Edges, states: States, words: Words, place: int) -> int:
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
