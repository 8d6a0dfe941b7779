"""The adaptive coder of levels of `fedmrn_app/kernels/level_coder.py` in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.kernels.level_tables import (
    BLOCK,
    ELEMENT,
    HALF_SHARE,
    INPUTS,
    LARGEST,
    LIMIT,
    LOGS,
    MAX_LEVEL,
    MOVES,
    RATES,
    SIGN,
    SIZE,
    SLACK,
    SQUASH,
    STRETCH,
    UNIT,
    WEIGHTS,
    Shape,
)  # fmt: skip

_WORD, _LEAST, _TOP = 0xFFFF, 1 << 32, 1 << 48


class RangeWriter:
    """Writes bits with their probabilities as 16-bit words: a number below 2^48 and what it can still grow by."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.low, self.width = 0, _TOP

    def code(self, share: int, bit: int) -> int:
        """Write a bit that is set with probability share / 2^16, and return it."""
        bound = (self.width >> 16) * share
        if bit:
            self.width = bound
        else:
            self.low += bound
            self.width -= bound
        if self.width < _LEAST:
            self._carry()
            self.words.append(self.low >> 32)
            self.low = (self.low & 0xFFFFFFFF) << 16
            self.width <<= 16
        return bit

    def end(self) -> list[int]:
        """Return all words: the last ones are the number with the most trailing zeros, which are left out."""
        mask = _TOP - 1
        high = self.low + self.width - 1
        while high & ~mask < self.low:
            mask >>= 1
        self.low = high & ~mask
        self._carry()
        self.words += [self.low >> 32, self.low >> 16 & _WORD, self.low & _WORD]
        least = max(len(self.words) - SLACK, 0)
        while len(self.words) > least and self.words[-1] == 0:
            self.words.pop()
        return self.words

    def _carry(self) -> None:
        if self.low >= _TOP:
            self.low -= _TOP
            place = len(self.words) - 1
            while self.words[place] == _WORD:
                self.words[place] = 0
                place -= 1
            self.words[place] += 1


class RangeReader:
    """Reads what a `RangeWriter` wrote; after the last word there are zeros."""

    def __init__(self, words: list[int]) -> None:
        self.words, self.place = words, 0
        self.low, self.width = 0, _TOP
        for _ in range(3):
            self.low = self.low << 16 | self._next()

    def _next(self) -> int:
        self.place += 1
        return self.words[self.place - 1] if self.place <= len(self.words) else 0

    def code(self, share: int, bit: int) -> int:
        """Return the next bit; the argument `bit` is ignored."""
        bound = (self.width >> 16) * share
        bit = int(self.low < bound)
        if bit:
            self.width = bound
        else:
            self.low -= bound
            self.width -= bound
        if self.width < _LEAST:
            self.low = self.low << 16 | self._next()
            self.width <<= 16
        return bit


@dataclass
class Predictor:
    """P(bit = 1) in one context, in steps of 2^-22; the n-th bit moves it by 1 / (n + 1.6)."""

    share: int
    count: int = 0

    def learn(self, bit: int) -> None:
        """Move towards a bit."""
        self.share = max(self.share + (((((bit << 22) - self.share) >> 3) * int(MOVES[self.count])) >> 13), 0)
        self.count = min(self.count + 1, LIMIT)


class Mixer:
    """All predictors, and the weights with which their logarithms of the odds are added."""

    def __init__(self, coder: RangeWriter | RangeReader, first: int) -> None:
        self.coder = coder
        self._start = {BLOCK: int(SQUASH[3072 - first]) << 6, ELEMENT: 1 << 20, SIGN: 1 << 21, SIZE: 1 << 20}
        self._predictors: dict[tuple[int, int, int], Predictor] = {}
        self._weights: dict[tuple[int, int], list[int]] = {}

    def predict(self, kind: int, row: int, contexts: list[int]) -> int:
        """Return the logarithm of the odds that the next bit is set, in units.

        Args:
            kind: of the bit.
            row: which weights to use.
            contexts: one for each predictor.
        """
        self._kind = kind
        self._used = [
            self._predictors.setdefault((kind, number, context), Predictor(self._start[kind]))
            for number, context in enumerate(contexts)
        ]
        self._row = self._weights.setdefault((kind, row), [WEIGHTS[kind]] * INPUTS + [0])
        self._inputs = [int(STRETCH[predictor.share >> 10]) for predictor in self._used] + [UNIT]
        odds = sum(weight * value for weight, value in zip(self._row, self._inputs, strict=True))
        self._odds = min(max((odds + 32768) >> 16, -LARGEST), LARGEST)
        return self._odds

    def code(self, bit: int) -> int:
        """Code the bit that was predicted, learn from it, and return it."""
        share = int(SQUASH[self._odds + 3072])
        bit = self.coder.code(share, bit)
        error = ((bit << 16) - share) * RATES[self._kind]
        for number, value in enumerate(self._inputs):
            self._row[number] += (value * error + (1 << 17)) >> 18
        for predictor in self._used:
            predictor.learn(bit)
        return bit


@dataclass
class Row:
    """Statistics of one row of a tensor, and of its current block."""

    trend: int
    mass: int = 0
    signs: int = 0
    lefts: list[int] = field(default_factory=lambda: [0, 0, 0])  # nonzero levels of the blocks before
    rate: int = 0
    block_rate: int = 0
    block_trend: int = 0
    count: int = 0  # nonzero levels of the block so far
    levels: int = 0  # sum of their sizes, each at most 4
    balance: int = 0  # positive less negative ones


class Columns:
    """Statistics of the columns of a tensor: sums of sizes and of signs, by block and by element of a row."""

    def __init__(self, shape: Shape, trends: NDArray[np.int64]) -> None:
        self.block_mass, self.block_signs, self.block_count = ([0] * shape.blocks for _ in range(3))
        self.mass, self.signs = ([0] * shape.length for _ in range(2))
        sums = [0] * shape.blocks
        for row in np.abs(trends).reshape(shape.rows, shape.length):
            for element, trend in enumerate(row):
                sums[element % shape.blocks if shape.block_step == 1 else element // shape.block_step] += int(trend)
        self.trend = [min(2 * total // (shape.rows * shape.elements), 15) for total in sums]


def encode(
    values: NDArray[np.int32], trends: NDArray[np.int8], shapes: NDArray[np.int64], price: int, first: int
) -> tuple[NDArray[np.int16], NDArray[np.uint16]]:
    """Return the levels and the words of the compiled form."""
    writer = RangeWriter()
    levels = _Levels(Mixer(writer, first), trends, values, price).run(shapes)
    return levels, np.array(writer.end(), np.uint16)


def decode(
    words: NDArray[np.uint16], trends: NDArray[np.int8], shapes: NDArray[np.int64], first: int
) -> NDArray[np.int16] | None:
    """Return the levels of words, or None if the words end long before the levels do."""
    reader = RangeReader(words.tolist())
    levels = _Levels(Mixer(reader, first), trends, None, 0).run(shapes)
    return levels if reader.place <= len(words) + SLACK else None


class _Levels:
    """Levels in the order in which they are coded."""

    def __init__(self, mixer: Mixer, trends: NDArray[np.int8], values: NDArray[np.int32] | None, price: int) -> None:
        self.mixer, self.price = mixer, price
        self.trends = trends.astype(np.int64)
        self.values = np.zeros(trends.size, np.int64) if values is None else values.astype(np.int64)
        self.levels = np.zeros(trends.size, np.int16)

    def run(self, shapes: NDArray[np.int64]) -> NDArray[np.int16]:
        """Code all tensors, and return the levels."""
        for fields in shapes.tolist():
            self.shape = shape = Shape(*fields)
            self.columns = Columns(shape, self.trends[shape.start : shape.start + shape.rows * shape.length])
            for self.number in range(shape.rows):
                self.start = start = shape.start + self.number * shape.length
                moved = int(np.abs(self.trends[start : start + shape.length]).sum())
                self.row = Row(min(2 * moved // shape.length, 15))
                for block in range(shape.blocks):
                    self.code_block(block)
        return self.levels

    def code_block(self, block: int) -> None:
        """Code whether a block has any level but zero, and its elements if it has."""
        shape, row, columns = self.shape, self.row, self.columns
        first = self.start + block * shape.block_step
        count = shape.elements if shape.block_step == 1 else min(shape.elements, shape.length - block * shape.elements)
        places = [first + k * shape.element_step for k in range(count)]
        row.block_trend = trend = min(sum(abs(int(self.trends[place])) for place in places) * shape.share >> 16, 31)
        row.rate = rate_of(row.mass, block)
        row.block_rate = rate_of(columns.block_mass[block], self.number)
        row.count = row.levels = row.balance = 0
        before, near = min(columns.block_count[block], 3), min(row.lefts[0], 3)
        left = near * 2 + min(row.lefts[1], 1)
        contexts = [
            shape.group * 32 + trend,
            (row.rate * 8 + left) * 4 + min(row.lefts[2], 3),
            row.block_rate * 4 + before,
            row.rate * 32 + row.block_rate,
            (row.trend * 16 + columns.trend[block]) * 32 + trend,
            (left * 4 + before) * 32 + trend,
        ]
        odds = self.mixer.predict(BLOCK, shape.group * 4 + near, contexts)
        gain, largest = self.gain(places)
        if self.mixer.code(int(largest >= 0 and gain > -self.price * odds)):
            for k in range(count):
                self.code_element(block, k, last=k == count - 1, forced=k == largest)
        row.lefts = [row.count, *row.lefts[:2]]
        columns.block_count[block] = row.count

    def gain(self, places: list[int]) -> tuple[int, int]:
        """Return what the levels of a block gain over zeros, less their price, and where the largest is, or -1."""
        gain, largest, found = 0, 0, -1
        for k, place in enumerate(places):
            size = abs(int(self.values[place]))
            if size > 141:
                level = min(max((size + 102) >> 8, 1), MAX_LEVEL)
                gain += UNIT * level * (2 * size - UNIT * level) - self.price * (710 + 88 * log_of(level))
                if size > largest:
                    largest, found = size, k
        return gain, found

    def code_element(self, block: int, k: int, *, last: bool, forced: bool) -> None:
        """Code one element of a block that is not zero, and take it into the statistics."""
        shape, row, columns = self.shape, self.row, self.columns
        element = block * shape.block_step + k * shape.element_step
        place = self.start + element
        left = int(self.levels[place - shape.block_step]) if block > 0 else 0
        up = int(self.levels[place - shape.element_step]) if k > 0 else 0
        above = int(self.levels[place - shape.above * shape.element_step]) if k >= shape.above else 0
        before = int(self.levels[place - shape.length]) if self.number > 0 else 0
        near = 2 * abs(up) + 2 * abs(above) + abs(left) + abs(before)
        trend, size = abs(int(self.trends[place])), abs(int(self.values[place]))
        count, position = min(row.count, 3), min(k, 15)
        if row.count > 0 or not last:  # otherwise it cannot be zero
            contexts = [
                ((count * 3 + min(abs(up), 2)) * 3 + min(abs(above), 2)) * 16 + position,
                (rate_of(columns.mass[element], self.number) * 3 + min(abs(before), 2)) * 3 + min(abs(left), 2),
                (shape.group * 16 + trend) * 32 + row.block_trend,
                ((row.rate * 4 + min(row.lefts[0], 3)) * 3 + min(abs(left), 2)) * 4 + count,
                (row.block_rate * 16 + trend) * 4 + count,
                (min(near, 31) * 16 + min(row.levels, 15)) * 16 + row.rate // 2,
            ]
            odds = self.mixer.predict(ELEMENT, count * 16 + position, contexts)
            wanted = forced or UNIT * (2 * size - UNIT) > self.price * (266 - odds)
            if not self.mixer.code(int(wanted)):
                return
        positive = self.code_sign(place, (left, up, above, before), element, block)
        rounded = min(max((size + 128 - (self.price * 133 >> 8)) >> 8, 1), MAX_LEVEL)
        level = self.code_size(near, trend, rounded)
        self.levels[place] = level if positive else -level
        mass, direction = min(level, 4), 2 * positive - 1
        row.count, row.levels, row.balance = row.count + 1, row.levels + mass, row.balance + direction
        row.mass, row.signs = row.mass + mass, row.signs + direction
        columns.block_mass[block] += mass
        columns.block_signs[block] += direction
        columns.mass[element] += mass
        columns.signs[element] += direction

    def code_sign(self, place: int, around: tuple[int, int, int, int], element: int, block: int) -> int:
        """Code whether an element is positive; `around` are the levels to the left, up, above and in the last row."""
        left, up, above, before = (sign_of(level) for level in around)
        balance = min(max(self.row.balance, -3), 3)
        of_row, of_block = small_log(self.row.signs), small_log(self.columns.block_signs[block])
        of_element = min(max(self.columns.signs[element], -3), 3)
        trend = min(max(int(self.trends[place]), -7), 7)
        contexts = [
            (((up + 1) * 3 + above + 1) * 3 + left + 1) * 7 + balance + 3,
            (of_row + 8) * 16 + trend + 8,
            (of_block + 8) * 16 + of_element + 4,
            ((of_row + 8) * 16 + of_block + 8) * 3 + before + 1,
            ((balance + 3) * 16 + trend + 8) * 3 + up + 1,
            ((of_element + 4) * 3 + before + 1) * 3 + left + 1,
        ]
        self.mixer.predict(SIGN, 0, contexts)
        return self.mixer.code(int(self.values[place] > 0))

    def code_size(self, near: int, trend: int, level: int) -> int:
        """Code a level, 1 or more: in unary code up to 15, then as an Exp-Golomb code."""
        for number in range(1, 16):
            if not self.size_bit(near, trend, number, level > number):
                return number
        rest, length = level - 15, 1
        while length < 14 and self.size_bit(near, trend, 15 + length, rest >> length > 0):
            length += 1
        found = 1
        for place in range(length - 2, -1, -1):
            found = found << 1 | self.mixer.coder.code(HALF_SHARE, rest >> place & 1)
        return 15 + found

    def size_bit(self, near: int, trend: int, number: int, bit: bool) -> int:
        """Code the bit of this number of a level's size."""
        row, short = self.row, min(number, 15)
        contexts = [
            number * 32 + self.shape.group,
            number * 16 + min(near, 15),
            (number * 32 + row.rate) * 16 + trend,
            (number * 32 + row.block_rate) * 4 + min(row.count, 3),
            (short * 32 + min(near, 31)) * 16 + min(row.levels, 15),
            (short * 32 + row.block_trend) * 16 + trend,
        ]
        self.mixer.predict(SIZE, number, contexts)
        return self.mixer.code(int(bit))


def log_of(x: int) -> int:
    """Return the logarithm of x >= 0 in quarters of an octave, rounded down; coarser beyond 2^14."""
    return int(LOGS[x]) if x < 1 << 14 else int(LOGS[min(x >> 12, (1 << 14) - 1)]) + 48


def rate_of(mass: int, trials: int) -> int:
    """Return the logarithm of a rate, in quarters of an octave from 0 to 31."""
    return min(max(log_of(mass * 16 + 8) - log_of(trials + 2) + 12, 0), 31)


def sign_of(x: int) -> int:
    """Return -1, 0 or 1."""
    return (x > 0) - (x < 0)


def small_log(x: int) -> int:
    """Return the sign of x times a logarithm of 1 + |x|, from -7 to 7."""
    return sign_of(x) * min(log_of(abs(x) + 1) // 2, 7)
