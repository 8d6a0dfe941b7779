"""The adaptive coder of levels, compiled.

    levels of a tensor  -->  bits: block zero?  element zero?  sign  size
                                                   |
    6 contexts of the bit: what both sides know,   |         6 predictors: P(bit = 1) so far in each context
    and what was coded before                    --+-->      |
                                                             v
              logarithms of the odds, weighted and added (logistic mixing)  -->  P(bit = 1)  -->  range coder
                                       ^                                             |
                                       +------- both learn from the bit  <-----------+

Tensors are coded one after the other, output by output. A block has the positions of one kernel, so one input and
output channel, or eight elements of a matrix that are next to each other. The contexts are made of how far the weights
of the block, of its row and of its column have moved since the start of the run (trends), and of the levels that were
coded before: the rates of nonzero levels in the row and in the column, and the neighbours.

Mahoney 2005, "Adaptive Weighing of Context Models for Lossless Data Compression", sections 3.1 and 3.2, with counts
that slow the predictors down; Marpe, Schwarz and Wiegand 2003, "Context-Based Adaptive Binary Arithmetic Coding in the
H.264/AVC Video Compression Standard", section III.A, for unary codes with an Exp-Golomb suffix.

The writer also quantizes. It minimizes the squared error plus a price per bit: a block is zero unless the other levels
gain more than they cost, and a small element is zero where the model expects zeros. All numbers are integers, so that
every machine computes the same bytes.

`tests/plain/level_coder.py` is the same coder in plain Python, with the same bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from fedmrn_app.kernels.compiled import Function, compiled_at_first_call
from fedmrn_app.kernels.level_tables import (
    BLOCK,
    ELEMENT,
    HALF_SHARE,
    INPUTS,
    KINDS,
    LARGEST,
    LIMIT,
    LOGS,
    MATRIX_BLOCK,
    MAX_LEVEL,
    MOVES,
    RATES,
    ROWS,
    SIGN,
    SIZE,
    SLACK,
    SLOTS,
    SQUASH,
    STRETCH,
    UNIT,
    WEIGHTS,
)

_MANY_WORDS = 1 << 20  # of room for levels of many bits, so that they are coded only once
_INT64_ROWS = types.Array(types.int64, 2, "C")
_READ_ONLY_ROWS = types.Array(types.int64, 2, "C", readonly=True)

# No function here allocates, so that none has to count references, which would take most of the time.
_NO_COUNTS = {"_nrt": False}


def inlined(function: Function) -> Function:
    """Compile a function as a part of another compiled one: a call would pass all arrays, field by field."""
    compiled: Function = numba.njit(error_model="numpy", forceinline=True, **_NO_COUNTS)(function)
    return compiled


_ZERO: Any = np.int64(0)  # NumPy's types would hinder the checks of types

# places in `Coder.state`
_LOW, _RANGE, _PLACE, _READING, _FULL = range(5)
# statistics of the columns of a tensor
_BLOCK_MASS, _BLOCK_SIGN, _BLOCK_COUNT, _MASS, _SIGNS, _TREND = range(6)
# places in `Coder.row` of the statistics of a row and of a block
_ROW_MASS, _ROW_SIGN, _LEFT, _LEFT2, _LEFT3, _ROW_TREND, _ROW_RATE, _BLOCK_RATE, _BLOCK_TREND = range(9)
_COUNT, _LEVELS, _BALANCE, _NUMBER = range(9, 13)


class Coder(NamedTuple):
    """All state of the coder, as arrays that a compiled function takes apart."""

    tables: Any  # uint32 (KINDS * INPUTS * SLOTS,), a probability in steps of 2^-22 and a count
    weights: Any  # int64 (KINDS * ROWS * (INPUTS + 1),)
    words: Any  # uint16, the coded words
    state: Any  # int64, see above
    columns: Any  # int64 (6, length of the longest row)
    row: Any  # int64, see above


class Known(NamedTuple):
    """What is coded, and what both sides know."""

    values: Any  # int32 (d,), values in 1/256 steps; anything when reading
    trends: Any  # int8 (d,), from -15 to 15
    levels: Any  # int16 (d,), the result
    price: Any  # int64, the price of a bit when writing


def encode(
    values: NDArray[np.int32], trends: NDArray[np.int8], shapes: NDArray[np.int64], price: int, first: int
) -> tuple[NDArray[np.int16], NDArray[np.uint16]]:
    """Quantize and encode values.

    Args:
        values: int32 (d,), in units, of which the quantizer's step has 256.
        trends: int8 (d,), how far and in which direction each weight has moved, from -15 to 15.
        shapes: as `coded_shapes` returns them.
        price: of 1/256 nat, in square units; with 0, whole steps are coded as they are.
        first: minus the logarithm of the odds of nonzero blocks before the first one, in units.

    Returns:
        The levels, int16 (d,), and the words, uint16.
    """
    levels = np.zeros(values.size, np.int16)
    size = min(2 * values.size, _MANY_WORDS + values.size // 2) + 64  # memory that is not written to costs nothing
    while True:
        words = np.empty(size, np.uint16)
        arrays = _new_arrays(shapes, first, words)
        place = _run(*arrays, values, trends, levels, price, shapes)
        if not arrays[-1][0, _FULL]:
            return levels, words[:place]
        size *= 4
        levels[:] = 0


def decode(
    words: NDArray[np.uint16], trends: NDArray[np.int8], shapes: NDArray[np.int64], first: int
) -> NDArray[np.int16] | None:
    """Return the levels of words, int16 (d,), or None if the words end long before the levels do."""
    levels = np.zeros(trends.size, np.int16)
    arrays = _new_arrays(shapes, first, words)
    arrays[-1][0, _READING] = 1
    place = _run(*arrays, np.zeros(1, np.int32), trends, levels, 0, shapes)
    return levels if place >= 0 else None


def _new_arrays(shapes: NDArray[np.int64], first: int, words: NDArray[np.uint16]) -> tuple[NDArray[Any], ...]:
    tables = np.full((KINDS, INPUTS * SLOTS), 1 << 30, np.uint32)
    tables[BLOCK] = np.uint32(SQUASH[3072 - first]) << 16
    tables[SIGN] = 1 << 31
    weights = np.zeros((KINDS, ROWS, INPUTS + 1), np.int64)
    weights[:, :, :INPUTS] = np.array(WEIGHTS)[:, None, None]
    columns = np.zeros((6, shapes[:, 2].max(initial=1)), np.int64)
    return tables.reshape(-1), weights.reshape(-1), words, columns, np.zeros((2, 16), np.int64)


@inlined
def _log(x: Any) -> Any:
    return np.int64(LOGS[x]) if x < 16384 else np.int64(LOGS[min(x >> 12, 16383)]) + 48


@inlined
def _clip(x: Any, low: Any, high: Any) -> Any:
    return min(max(x, low), high)


@inlined
def _sign(x: Any) -> Any:
    return np.int64(x > 0) - np.int64(x < 0)


@inlined
def _rate(mass: Any, trials: Any) -> Any:
    return _clip(_log(mass * 16 + 8) - _log(trials + 2) + 12, 0, 31)


@inlined
def _carry(words: Any, place: Any) -> Any:
    place -= 1
    while words[place] == 65535:
        words[place] = 0
        place -= 1
    words[place] += 1


@inlined
def _code_bit(coder: Any, share: Any, bit: Any) -> Any:
    """Write a bit, or read one, with the probability `share` that it is set; return it."""
    state, words = coder.state, coder.words
    width = state[_RANGE]
    bound = (width >> 16) * share
    if state[_READING]:
        bit = np.int64(state[_LOW] < bound)
        if bit:
            width = bound
        else:
            state[_LOW] -= bound
            width -= bound
        if width < 1 << 32:
            place = state[_PLACE]
            word = np.int64(words[place]) if place < words.size else 0
            state[_LOW] = state[_LOW] << 16 | word
            state[_PLACE] = place + 1
            width <<= 16
    else:
        if bit:
            width = bound
        else:
            state[_LOW] += bound
            width -= bound
        if width < 1 << 32:
            place = state[_PLACE]
            low = state[_LOW]
            if low >= 1 << 48:
                _carry(words, place)
                low -= 1 << 48
            words[place] = low >> 32
            if place + 4 < words.size:
                state[_PLACE] = place + 1
            else:
                state[_FULL] = 1
            state[_LOW] = (low & 0xFFFFFFFF) << 16
            width <<= 16
    state[_RANGE] = width
    return bit


@inlined
def _says(tables: Any, slot: Any) -> Any:
    """Return what a predictor says, in units."""
    # an unsigned index is not checked for being negative, which takes time here
    return np.int64(STRETCH[np.uint64(tables[np.uint64(slot)] >> np.uint32(20))])


@inlined
def _predict(coder: Any, kind: Any, row: Any, slots: Any) -> Any:
    """Return the logarithm of the odds that the next bit is set, in units, and what its predictors say."""
    tables, weights, w = coder.tables, coder.weights, np.uint64((kind * ROWS + row) * (INPUTS + 1))
    a, b, c, d, e, f = slots
    start, apart = kind * INPUTS * SLOTS, SLOTS
    a, b, c = _says(tables, start + a), _says(tables, start + apart + b), _says(tables, start + 2 * apart + c)
    d, e, f = (
        _says(tables, start + 3 * apart + d), _says(tables, start + 4 * apart + e), _says(tables, start + 5 * apart + f)
    )  # fmt: skip
    odds = weights[w + np.uint64(INPUTS)] * UNIT
    odds += weights[w] * a + weights[w + np.uint64(1)] * b + weights[w + np.uint64(2)] * c
    odds += weights[w + np.uint64(3)] * d + weights[w + np.uint64(4)] * e + weights[w + np.uint64(5)] * f
    return _clip((odds + 32768) >> 16, -LARGEST, LARGEST), (a, b, c, d, e, f)


@inlined
def _learn(coder: Any, slot: Any, weight: Any, said: Any, error: Any, target: Any) -> Any:
    """Move a predictor and its weight towards a bit."""
    tables, weights, slot = coder.tables, coder.weights, np.uint64(slot)
    weights[weight] += (said * error + (1 << 17)) >> 18
    entry = np.int64(tables[slot])
    count, p = entry & LIMIT, entry >> 10
    p = max(_ZERO, p + ((((target - p) >> 3) * np.int64(MOVES[np.uint64(count)])) >> 13))
    tables[slot] = p << 10 | (count + np.int64(count < LIMIT))


@inlined
def _settle(coder: Any, kind: Any, row: Any, slots: Any, predicted: Any, bit: Any) -> Any:
    """Code the bit that was predicted, learn from it, and return it."""
    odds, said = predicted
    share = np.int64(SQUASH[np.uint64(odds + 3072)])
    bit = _code_bit(coder, share, bit)
    error = ((bit << 16) - share) * RATES[kind]
    target, w = bit << 22, np.uint64((kind * ROWS + row) * (INPUTS + 1))
    coder.weights[w + np.uint64(INPUTS)] += (UNIT * error + (1 << 17)) >> 18
    start = kind * INPUTS * SLOTS
    _learn(coder, start + slots[0], w, said[0], error, target)
    _learn(coder, start + SLOTS + slots[1], w + np.uint64(1), said[1], error, target)
    _learn(coder, start + 2 * SLOTS + slots[2], w + np.uint64(2), said[2], error, target)
    _learn(coder, start + 3 * SLOTS + slots[3], w + np.uint64(3), said[3], error, target)
    _learn(coder, start + 4 * SLOTS + slots[4], w + np.uint64(4), said[4], error, target)
    _learn(coder, start + 5 * SLOTS + slots[5], w + np.uint64(5), said[5], error, target)
    return bit


@inlined
def _gain(known: Any, place: Any, step: Any, count: Any) -> Any:
    """Return what coding a block of values gains over zeros, less its price, and the largest magnitude's place."""
    values, price = known.values, known.price
    gain, largest, found = _ZERO, _ZERO, -1 + _ZERO
    for i in range(count):
        size = abs(np.int64(values[place + i * step]))
        if size > 141:
            level = _clip((size + 102) >> 8, 1, MAX_LEVEL)
            gain += UNIT * level * (2 * size - UNIT * level) - price * (710 + 88 * _log(level))
            if size > largest:
                largest, found = size, np.int64(i)
    return gain, found


@inlined
def _round(size: Any, price: Any) -> Any:
    return _clip((size + 128 - (price * 133 >> 8)) >> 8, 1, MAX_LEVEL)


@inlined
def _code_sign(coder: Any, known: Any, place: Any, around: Any, column: Any) -> Any:
    row, columns = coder.row, coder.columns
    element, block = column
    left, up, above, before = _sign(around[0]), _sign(around[1]), _sign(around[2]), _sign(around[3])
    balance = _clip(row[_BALANCE], -3, 3)
    of_row = _sign(row[_ROW_SIGN]) * min(_log(abs(row[_ROW_SIGN]) + 1) // 2, 7)
    of_block = columns[_BLOCK_SIGN, block]
    of_block = _sign(of_block) * min(_log(abs(of_block) + 1) // 2, 7)
    of_element = _clip(columns[_SIGNS, element], -3, 3)
    trend = _clip(np.int64(known.trends[place]), -7, 7)
    slots = (
        (((up + 1) * 3 + above + 1) * 3 + left + 1) * 7 + balance + 3,
        (of_row + 8) * 16 + trend + 8,
        (of_block + 8) * 16 + of_element + 4,
        ((of_row + 8) * 16 + of_block + 8) * 3 + before + 1,
        ((balance + 3) * 16 + trend + 8) * 3 + up + 1,
        ((of_element + 4) * 3 + before + 1) * 3 + left + 1,
    )
    return _settle(
        coder,
        SIGN,
        0,
        slots,
        _predict(coder, SIGN, 0, slots),
        np.int64(known.values[place] > 0) if not coder.state[_READING] else 0,
    )


@inlined
def _size_slots(coder: Any, group: Any, near: Any, trend: Any, number: Any) -> Any:
    row = coder.row
    return (
        number * 32 + group,
        number * 16 + min(near, 15),
        (number * 32 + row[_ROW_RATE]) * 16 + trend,
        (number * 32 + row[_BLOCK_RATE]) * 4 + min(row[_COUNT], 3),
        (min(number, 15) * 32 + min(near, 31)) * 16 + min(row[_LEVELS], 15),
        (min(number, 15) * 32 + row[_BLOCK_TREND]) * 16 + trend,
    )


@inlined
def _code_size(coder: Any, group: Any, near: Any, trend: Any, level: Any) -> Any:
    """Code a level, 1 or more: in unary code up to 15, then as an Exp-Golomb code."""
    number = 1
    while number < 16:
        slots = _size_slots(coder, group, near, trend, number)
        predicted = _predict(coder, SIZE, number, slots)
        if not _settle(coder, SIZE, number, slots, predicted, np.int64(level > number)):
            return number
        number += 1
    rest, length = level - 15, 1
    while length < 14:
        slots = _size_slots(coder, group, near, trend, 15 + length)
        predicted = _predict(coder, SIZE, 15 + length, slots)
        if not _settle(coder, SIZE, 15 + length, slots, predicted, np.int64(rest >> length > 0)):
            break
        length += 1
    found = 1
    for i in range(length - 2, -1, -1):
        found = found << 1 | _code_bit(coder, HALF_SHARE, rest >> i & 1)
    return 15 + found


@inlined
def _code_element(coder: Any, known: Any, shape: Any, place: Any, numbers: Any) -> Any:
    """Code one element of a block that is not zero, and take it into the statistics."""
    row, columns, levels = coder.row, coder.columns, known.levels
    k, block, last, largest, started = numbers
    element = block * shape[5] + k * shape[6]
    left = np.int64(levels[place - shape[5]]) if block > 0 else _ZERO
    up = np.int64(levels[place - shape[6]]) if k > 0 else _ZERO
    above = np.int64(levels[place - shape[7] * shape[6]]) if k >= shape[7] else _ZERO
    before = np.int64(levels[place - shape[2]]) if started else _ZERO
    near = 2 * abs(up) + 2 * abs(above) + abs(left) + abs(before)
    trend = abs(np.int64(known.trends[place]))
    count, position = min(row[_COUNT], 3), min(k, 15)
    size = _ZERO if coder.state[_READING] else abs(np.int64(known.values[place]))
    if row[_COUNT] > 0 or k < last:
        rate = _rate(columns[_MASS, element], row[_NUMBER])
        slots = (
            ((count * 3 + min(abs(up), 2)) * 3 + min(abs(above), 2)) * 16 + position,
            (rate * 3 + min(abs(before), 2)) * 3 + min(abs(left), 2),
            (shape[8] * 16 + trend) * 32 + row[_BLOCK_TREND],
            ((row[_ROW_RATE] * 4 + min(row[_LEFT], 3)) * 3 + min(abs(left), 2)) * 4 + count,
            (row[_BLOCK_RATE] * 16 + trend) * 4 + count,
            (min(near, 31) * 16 + min(row[_LEVELS], 15)) * 16 + row[_ROW_RATE] // 2,
        )
        predicted = _predict(coder, ELEMENT, count * 16 + position, slots)
        wanted = k == largest or UNIT * (2 * size - UNIT) > known.price * (266 - predicted[0])
        if not _settle(coder, ELEMENT, count * 16 + position, slots, predicted, np.int64(wanted)):
            return
    positive = _code_sign(coder, known, place, (left, up, above, before), (element, block))
    level = _code_size(coder, shape[8], near, trend, _round(size, known.price))
    levels[place] = level if positive else -level
    mass, direction = min(level, 4), 2 * positive - 1
    row[_COUNT] += 1
    row[_LEVELS] += mass
    row[_BALANCE] += direction
    row[_ROW_MASS] += mass
    row[_ROW_SIGN] += direction
    columns[_BLOCK_MASS, block] += mass
    columns[_BLOCK_SIGN, block] += direction
    columns[_MASS, element] += mass
    columns[_SIGNS, element] += direction


@inlined
def _code_block(coder: Any, known: Any, shape: Any, start: Any, block: Any) -> Any:
    """Code whether a block has any level but zero, and its elements if it has."""
    row, columns = coder.row, coder.columns
    count = min(shape[4], shape[2] - block * shape[5]) if shape[6] == 1 and shape[5] > 1 else shape[4]
    place = start + block * shape[5]
    trend = _ZERO
    for k in range(count):
        trend += abs(np.int64(known.trends[place + k * shape[6]]))
    trend = min(trend * shape[9] >> 16, 31)
    row[_ROW_RATE] = _rate(row[_ROW_MASS], block)
    row[_BLOCK_RATE] = _rate(columns[_BLOCK_MASS, block], row[_NUMBER])
    row[_BLOCK_TREND] = trend
    row[_COUNT] = row[_LEVELS] = row[_BALANCE] = 0
    before, near = min(columns[_BLOCK_COUNT, block], 3), min(row[_LEFT], 3)
    left = near * 2 + min(row[_LEFT2], 1)
    slots = (
        shape[8] * 32 + trend,
        (row[_ROW_RATE] * 8 + left) * 4 + min(row[_LEFT3], 3),
        row[_BLOCK_RATE] * 4 + before,
        row[_ROW_RATE] * 32 + row[_BLOCK_RATE],
        (row[_ROW_TREND] * 16 + columns[_TREND, block]) * 32 + trend,
        (left * 4 + before) * 32 + trend,
    )
    predicted = _predict(coder, BLOCK, shape[8] * 4 + near, slots)
    gain, largest = _ZERO, -1 + _ZERO
    if not coder.state[_READING]:
        gain, largest = _gain(known, place, shape[6], count)
    wanted = largest >= 0 and gain > -known.price * predicted[0]
    if _settle(coder, BLOCK, shape[8] * 4 + near, slots, predicted, np.int64(wanted)):
        for k in range(count):
            _code_element(coder, known, shape, place + k * shape[6], (k, block, count - 1, largest, row[_NUMBER] > 0))
    row[_LEFT3], row[_LEFT2], row[_LEFT] = row[_LEFT2], row[_LEFT], row[_COUNT]
    columns[_BLOCK_COUNT, block] = row[_COUNT]


@inlined
def _start_tensor(coder: Any, known: Any, shape: Any) -> Any:
    """Reset the statistics of columns, and find how far the weights of each column of blocks have moved."""
    columns, trends = coder.columns, known.trends
    columns[:, : shape[2]] = 0
    trend = columns[_TREND]
    place = shape[0]
    for _ in range(shape[1]):
        if shape[5] == 1:
            for _ in range(shape[4]):
                for block in range(shape[3]):
                    trend[block] += abs(np.int64(trends[place + block]))
                place += shape[3]
        else:
            for e in range(shape[2]):
                trend[e // MATRIX_BLOCK] += abs(np.int64(trends[place + e]))
            place += shape[2]
    for block in range(shape[3]):
        trend[block] = min(2 * trend[block] // (shape[1] * shape[4]), 15)


@inlined
def _start_row(coder: Any, known: Any, shape: Any, start: Any) -> Any:
    row = coder.row
    row[:_ROW_TREND] = 0
    trend = _ZERO
    for e in range(shape[2]):
        trend += abs(np.int64(known.trends[start + e]))
    row[_ROW_TREND] = min(2 * trend // shape[2], 15)


@inlined
def _begin(coder: Any) -> Any:
    state, words = coder.state, coder.words
    state[_RANGE] = 1 << 48
    if state[_READING]:
        for i in range(3):
            state[_LOW] = state[_LOW] << 16 | (np.int64(words[i]) if i < words.size else 0)
        state[_PLACE] = 3


@inlined
def _end(coder: Any) -> Any:
    """Write the words that tell the last bits: the roundest number in the range."""
    state, words = coder.state, coder.words
    low, high = state[_LOW], state[_LOW] + state[_RANGE] - 1
    mask = (1 << 48) - 1
    while (high & ~mask) < low:
        mask >>= 1
    low = high & ~mask
    place = state[_PLACE]
    if low >= 1 << 48:
        _carry(words, place)
    for i in range(3):
        words[place + i] = low >> (32 - 16 * i) & 0xFFFF
    place += 3
    least = max(place - SLACK, 0)
    while place > least and words[place - 1] == 0:
        place -= 1
    return place


@compiled_at_first_call(
    types.int64(
        types.Array(types.uint32, 1, "C"), types.Array(types.int64, 1, "C"), types.Array(types.uint16, 1, "C"),
        _INT64_ROWS, _INT64_ROWS,
        types.Array(types.int32, 1, "C", readonly=True), types.Array(types.int8, 1, "C", readonly=True),
        types.Array(types.int16, 1, "C"), types.int64, _READ_ONLY_ROWS,
    ),
    **_NO_COUNTS,
)  # fmt: skip
def _run(
    tables: Any, weights: Any, words: Any, columns: Any, scratch: Any,
    values: Any, trends: Any, levels: Any, price: Any, shapes: Any,
) -> Any:  # fmt: skip
    coder = Coder(tables, weights, words, scratch[0], columns, scratch[1])
    known = Known(values, trends, levels, price)
    state = coder.state
    _begin(coder)
    for t in range(shapes.shape[0]):
        shape = shapes[t]
        _start_tensor(coder, known, shape)
        for i in range(shape[1]):
            start = shape[0] + i * shape[2]
            coder.row[_NUMBER] = i
            _start_row(coder, known, shape, start)
            for block in range(shape[3]):
                _code_block(coder, known, shape, start, block)
            if state[_PLACE] > words.size + SLACK:  # only when reading
                return -1
    return state[_PLACE] if state[_READING] else _end(coder)
