"""Evaluation where the data are: what a client tells about the rows that it holds out, and the sums over clients.

    client: rows, loss and the task's counts -> Tally.pack -> eight bytes per entry
    server: entries of the clients, or only their sum -> Tally.of -> metrics and mean loss

All entries are whole multiples of 2^-20, so that sums are exact: a secure sum equals a plain one to the last bit, and
the order of the clients does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.secure.fields import Field, Fields, Words

FRACTION = 20  # binary places of an entry
_FIXED = 3  # entries before the task's counts: rows, clients without a loss, and the sum of the losses
_BITS = 64


@dataclass(frozen=True)
class Tally:
    """What is known about some held-out rows; tallies add.

    Attributes:
        rows: number of rows.
        loss: sum of the losses of all rows, NaN where that of a client is not finite, or too large to be sent.
        counts: the task's counts, float64 of the shape that `Task.tally` returns.
    """

    rows: int
    loss: float
    counts: NDArray[np.float64]

    def steps(self, summands: int = 1) -> NDArray[np.int64]:
        """Return the entries as multiples of 2^-20, int64 (3 + counts,).

        Args:
            summands: number of tallies in the sum that must not wrap around.

        Raises:
            PayloadError: a count is not finite, or so large that the sum would wrap around.
        """
        largest = math.ldexp(1.0, _BITS - 1 - FRACTION) / summands
        finite = abs(self.loss) < largest  # also where it is NaN
        values = [self.rows, 0.0 if finite else 1.0, self.loss if finite else 0.0, *self.counts.reshape(-1)]
        steps = np.rint(np.ldexp(np.array(values, np.float64), FRACTION))
        if not (np.abs(steps) < math.ldexp(largest, FRACTION)).all():  # also refuses NaN
            reason = f"an entry of the tally is not below {largest:.3g}"
            raise PayloadError(reason, code="tally", value=self.rows)
        return steps.astype(np.int64)

    def pack(self) -> bytes:
        """Return the entries as a client sends them, eight bytes each."""
        return self.steps().astype("<i8").tobytes()

    @classmethod
    def of(cls, steps: Sequence[int], shape: Sequence[int]) -> Tally:
        """Return the tally with these entries, of one client or of a sum.

        Args:
            steps: multiples of 2^-20.
            shape: of the task's counts.

        Raises:
            PayloadError: there are other entries, or they cannot be those of rows.
        """
        if len(steps) != tally_entries(shape):
            reason = f"the tally has {len(steps)} entries, expected {tally_entries(shape)}"
            raise PayloadError(reason, code="tally", value=len(steps))
        values = [step / (1 << FRACTION) for step in map(int, steps)]
        rows, infinite = values[:2]
        if rows < 0 or infinite < 0 or not rows.is_integer():
            raise PayloadError(f"the tally is of {rows:g} rows", code="tally", value=rows)
        loss = math.nan if infinite else values[2]
        return cls(int(rows), loss, np.array(values[_FIXED:], np.float64).reshape(tuple(shape)))


@dataclass(frozen=True)
class NoisyTally:
    """A sum of tallies with noise.

    Attributes:
        rows: number of rows with noise, which may be negative.
        loss: sum of the losses with noise.
        counts: the task's counts with noise, as in `Tally`.
    """

    rows: float
    loss: float
    counts: NDArray[np.float64]


@dataclass(frozen=True)
class Evaluated:
    """What clients found out about one model.

    Attributes:
        total: sum of the tallies.
        tallies: of each client, in ascending order; empty with secure sums and with noise, which tell only the total.
        uplink: bytes of the replies of each client that was asked.
        downlink: bytes sent to each client that was asked.
    """

    total: Tally | NoisyTally
    tallies: Mapping[int, Tally] = field(default_factory=dict)
    uplink: Sequence[int] = ()
    downlink: Sequence[int] = ()


def tally_entries(shape: Sequence[int]) -> int:
    """Return the number of entries of a tally with counts of this shape."""
    return _FIXED + math.prod(shape)


def tally_bytes(shape: Sequence[int]) -> int:
    """Return the number of bytes of a packed tally with counts of this shape."""
    return tally_entries(shape) * _BITS // 8


def read_tally(data: bytes, shape: Sequence[int]) -> Tally:
    """Return the tally that a client has packed.

    Raises:
        PayloadError: it has another size, or cannot be one of rows.
    """
    if len(data) != tally_bytes(shape):
        raise PayloadError(f"the tally has {len(data)} bytes, expected {tally_bytes(shape)}", code="tally")
    return Tally.of(np.frombuffer(data, "<i8").tolist(), shape)


def add_tallies(tallies: Iterable[Tally], shape: Sequence[int]) -> Tally:
    """Return the sum of tallies; exact, whatever the number of tallies."""
    total = [0] * tally_entries(shape)
    for tally in tallies:
        total = [sum(pair) for pair in zip(total, tally.steps().tolist(), strict=True)]
    return Tally.of(total, shape)


def tally_fields(shape: Sequence[int]) -> Fields:
    """Return the fields of a secure sum of tallies."""
    return Fields((Field(tally_entries(shape), _BITS),))


def tally_input(tally: Tally, summands: int) -> tuple[Fields, list[Words]]:
    """Return the fields of a secure sum, and a client's integers.

    Raises:
        PayloadError: as `Tally.steps`.
    """
    words: NDArray[Any] = tally.steps(summands).view(np.uint64)
    return tally_fields(tally.counts.shape), [words.copy()]


def from_sum(words: Words, shape: Sequence[int]) -> Tally:
    """Return the tally of a secure sum.

    Raises:
        PayloadError: it cannot be one of rows.
    """
    return Tally.of(np.ascontiguousarray(words).view(np.int64).tolist(), shape)
