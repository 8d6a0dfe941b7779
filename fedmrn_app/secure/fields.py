"""Vectors of integers modulo powers of two, and their packed bytes.

A message holds several fields, such as a mask of 4 bits per weight and biases of 48 bits per value. Arithmetic is on
whole unsigned words, whose wrap-around keeps the low bits right; only the low bits of each word are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError

Words = NDArray[np.unsignedinteger[Any]]  # one field: uint8, uint16, uint32 or uint64
MAX_BITS = 64
_PIECE = 1 << 16  # elements that are packed at a time, a multiple of 8


def bits_for(largest: int) -> int:
    """Return the number of bits that hold all integers from 0 to `largest`."""
    return max(1, largest.bit_length())


@dataclass(frozen=True)
class Field:
    """Integers modulo 2^bits.

    Attributes:
        count: number of integers.
        bits: from 1 to 64.
    """

    count: int
    bits: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest unsigned word that holds an integer."""
        return np.dtype(next(f"<u{size}" for size in (1, 2, 4, 8) if 8 * size >= self.bits))

    @property
    def size(self) -> int:
        """Number of packed bytes."""
        return (self.count * self.bits + 7) // 8

    def reduce(self, words: Words) -> None:
        """Take words modulo 2^bits, in place."""
        words &= self.dtype.type((1 << self.bits) - 1)

    def pack(self, words: Words) -> bytes:
        """Return the low bits of all words, the lowest bit first."""
        if self.bits == 8 * self.dtype.itemsize:
            return words.tobytes()
        if self.bits % 8 == 0:
            return words.view(np.uint8).reshape(-1, self.dtype.itemsize)[:, : self.bits // 8].tobytes()
        return b"".join(self._pack_bits(words[start : start + _PIECE]) for start in range(0, self.count, _PIECE))

    def _pack_bits(self, words: Words) -> bytes:
        octets = words.view(np.uint8).reshape(-1, self.dtype.itemsize)
        return np.packbits(
            np.unpackbits(octets, axis=1, count=self.bits, bitorder="little"), bitorder="little"
        ).tobytes()

    def unpack(self, data: bytes | memoryview) -> Words:
        """Return the words (count,) that `pack` packed; `data` has `size` bytes."""
        words = np.zeros(self.count, self.dtype)
        octets, packed = words.view(np.uint8).reshape(-1, self.dtype.itemsize), np.frombuffer(data, np.uint8)
        if self.bits % 8 == 0:
            octets[:, : self.bits // 8] = packed.reshape(-1, self.bits // 8)
            return words
        for start in range(0, self.count, _PIECE):
            part = octets[start : start + _PIECE]
            first, count = start * self.bits // 8, len(part) * self.bits
            bits = np.unpackbits(packed[first : first + (count + 7) // 8], count=count, bitorder="little")
            part[:] = np.packbits(self._padded(bits), axis=1, bitorder="little")
        return words

    def _padded(self, bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return bits (n * bits,) as rows of whole words (n, 8 * itemsize)."""
        rows = np.zeros((bits.size // self.bits, 8 * self.dtype.itemsize), np.uint8)
        rows[:, : self.bits] = bits.reshape(-1, self.bits)
        return rows


@dataclass(frozen=True)
class Fields:
    """The fields of a masked input, in order."""

    fields: tuple[Field, ...]

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    @property
    def size(self) -> int:
        """Number of packed bytes of all fields."""
        return sum(field.size for field in self.fields)

    def zeros(self) -> list[Words]:
        """Return new words, all zero."""
        return [np.zeros(field.count, field.dtype) for field in self.fields]

    def pack(self, vectors: Sequence[Words]) -> bytes:
        """Return the packed bytes of one vector per field."""
        return b"".join(field.pack(words) for field, words in zip(self.fields, vectors, strict=True))

    def unpack(self, data: bytes | memoryview) -> list[Words]:
        """Return one vector per field.

        Raises:
            PayloadError: `data` has another length, or bits after the last integer of a field are set.
        """
        if len(data) != self.size:
            raise PayloadError(
                f"masked input has {len(data)} bytes, expected {self.size}", code="secure-length", value=len(data)
            )
        vectors, start = [], 0
        for field in self.fields:
            part = data[start : start + field.size]
            if (spare := 8 * field.size - field.count * field.bits) and part[-1] >> (8 - spare):
                raise PayloadError("masked input has bits after its last integer", code="secure-bits")
            vectors.append(field.unpack(part))
            start += field.size
        return vectors

    def add(self, total: Sequence[Words], vectors: Sequence[Words]) -> None:
        """Add vectors to `total`, in place and modulo whole words."""
        for words, more in zip(total, vectors, strict=True):
            words += more

    def reduce(self, total: Sequence[Words]) -> None:
        """Take all words modulo their fields' powers of two, in place."""
        for field, words in zip(self.fields, total, strict=True):
            field.reduce(words)
