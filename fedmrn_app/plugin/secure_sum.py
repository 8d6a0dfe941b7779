"""What clients add up in a secure round of somebody's app: mask bits, changes in fixed point, and changes of integers.

All clients of a round have to lay out their integers alike, so the way of each tensor follows from the arrays that were
sent and not from the training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.exchange.messages import FIELD
from fedmrn_app.layout import Float32Array, slices
from fedmrn_app.plugin.arrays import Parts, Values, Way, usual_ways
from fedmrn_app.plugin.comparison import find_tied
from fedmrn_app.plugin.fixed_point import Steps
from fedmrn_app.plugin.secure_losses import MOST_BITS, name_cut_exact, name_losses
from fedmrn_app.plugin.settings import RECORD, SECURE
from fedmrn_app.secure.fields import Field, Fields, Words, bits_for

_MAX_EXACT = (1 << 47) - 1  # largest number of steps of an integer, or of a number that is alone in its tensor
_FRACTION = 24  # binary places of such numbers, which may be counters that Flower's mean has made real


@dataclass(frozen=True)
class SumLayout:
    """The integers of one client in the sum of a round.

    Attributes:
        parts: the tensors: those with mask bits, those whose changes are in fixed point, and those of integers.
        ways: of the tensors, uint8 (tensors,).
        exact_sizes: number of elements of each tensor of integers or of a single number.
        steps: of the changes in fixed point.
    """

    parts: Parts
    ways: NDArray[np.uint8]
    exact_sizes: Sequence[int]
    steps: Steps

    @classmethod
    def of(cls, values: Values, steps: Steps, *, masks: bool) -> SumLayout:
        """Return the layout for arrays that were sent.

        Args:
            values: the arrays.
            steps: of the changes in fixed point.
            masks: whether tensors with two and more dimensions are learned as masks.

        Raises:
            RunError: an array holds neither real numbers nor integers.
        """
        usual = usual_ways(values)
        ways = np.full(len(values), Way.DENSE, np.uint8)
        coded: list[str] = []
        for number, (name, value) in enumerate(values.items()):
            if value.dtype.kind not in "fiub":
                reason = f"{name}: has the type {value.dtype}; secure sums hold real numbers and integers"
                raise RunError(reason, code="dtype", key=name, value=str(value.dtype))
            if usual[number] == Way.EXACT:
                ways[number] = Way.EXACT
            elif masks and usual[number] == Way.CODED:
                alike = find_tied(name, values, coded) is not None
                tied = alike and bool(np.any(value != value.flat[0]))  # tensors of zeros need not be tied
                ways[number] = Way.TIED if tied else Way.CODED
                coded += [] if tied else [name]
        parts = Parts.of(values, ways)
        return cls(parts, ways, [values[name].size for name in parts.exact], steps)

    def fields(self, summands: int) -> Fields:
        """Return the fields of a sum of so many clients; the last one counts values that were cut to the bound."""
        fixed, exact = (sum(sizes) for sizes in (self.parts.dense_sizes, self.exact_sizes))
        return Fields(
            (
                Field(self.parts.layout.count, bits_for(summands)),
                Field(fixed, _signed_bits(summands * self.steps.largest)),
                Field(exact, _signed_bits(summands * _MAX_EXACT)),
                Field(1, bits_for(summands * (fixed + exact))),
            )
        )

    def words(self, fields: Fields, sent: Values, trained: Values, mask: NDArray[np.uint8]) -> list[Words]:
        """Return one client's integers, one vector per field; the log names tensors that lose much by the rounding.

        Args:
            fields: of the sum.
            sent: the arrays that the client was sent.
            trained: the same arrays after the training, finite where they have changed.
            mask: its mask bits, uint8 (d,).
        """
        masks, fixed, exact, counter = fields
        changes = [_change(sent[name], trained[name]) for name in self.parts.dense]
        exact_changes = [_change(sent[name], trained[name]) * _scale(sent[name]) for name in self.parts.exact]
        name_losses(self.parts.dense, sent, changes, self.steps)
        name_cut_exact(self.parts.exact, exact_changes, _MAX_EXACT)
        steps = np.rint(_joined(changes) / self.steps.step)
        whole = np.rint(_joined(exact_changes))
        cut = np.clip(steps, -self.steps.largest, self.steps.largest)
        cut_whole = np.clip(whole, -_MAX_EXACT, _MAX_EXACT)
        clipped = np.count_nonzero(cut != steps) + np.count_nonzero(cut_whole != whole)
        return [
            mask.astype(masks.dtype),
            _wrapped(cut, fixed),
            _wrapped(cut_whole, exact),
            np.array([clipped], counter.dtype),
        ]

    def mean(self, totals: Sequence[Words], summands: int) -> Mean:
        """Return the mean of a sum of so many clients.

        Raises:
            RunError: the sum is none of masks.
        """
        masks, fixed, exact, counter = totals
        if masks.max(initial=0) > summands:
            reason = f"the secure sum is none of {summands} masks; a client sent something else"
            raise RunError(reason, code="secure-sum")
        _, fixed_field, exact_field, _ = self.fields(summands)
        return Mean(
            masks.astype(np.float32) / np.float32(summands),
            _signed(fixed, fixed_field) * (self.steps.step / summands),
            _signed(exact, exact_field) / summands,
            int(counter[0]),
        )

    def moved(self, sent: Values, mean: Mean, update: Float32Array) -> dict[str, NDArray[np.generic]]:
        """Return arrays that were sent plus a mean change, each in its own dtype; integers are rounded.

        Args:
            sent: the arrays.
            mean: of the changes.
            update: of the tensors with masks, float32 (d,).
        """
        parts = self.parts
        vector = parts.vector(sent) + update
        moved = parts.replaced(sent, vector, parts.dense_vector(sent), parts.exact_bytes(sent))
        for name, place in zip(parts.dense, slices(parts.dense_sizes), strict=True):
            change = mean.fixed[place].reshape(sent[name].shape)
            moved[name] = (sent[name].astype(np.float64) + change).astype(sent[name].dtype)
        for name, place in zip(parts.exact, slices(self.exact_sizes), strict=True):
            change = (mean.exact[place] / _scale(sent[name])).reshape(sent[name].shape)
            if sent[name].dtype.kind == "f":
                moved[name] = (sent[name].astype(np.float64) + change).astype(sent[name].dtype)
            else:
                moved[name] = (sent[name].astype(np.int64) + np.rint(change).astype(np.int64)).astype(sent[name].dtype)
        return moved


@dataclass(frozen=True)
class Mean:
    """The mean of what the clients of a round sent.

    Attributes:
        masks: mean bits, float32 (d,).
        fixed: mean changes of tensors of real numbers, float64 (m,).
        exact: mean changes of integers and single numbers, in their steps, float64 (k,).
        clipped: how many values of all clients together were cut to the bound.
    """

    masks: Float32Array
    fixed: NDArray[np.float64]
    exact: NDArray[np.float64]
    clipped: int


def secure_content(content: RecordDict, message: bytes, steps: Steps | None = None) -> RecordDict:
    """Return the content with a message of the secure sum, and with `steps` how the client rounds its changes."""
    fields: dict[str, Any] = {FIELD: message}
    if steps is not None:
        fields |= {"bits": steps.bits, "bound": steps.bound}
    content[SECURE] = ConfigRecord(fields)
    return content


def sum_binding(content: RecordDict, masks: bool) -> bytes:
    """Return the hash of what a client is sent, to which its pads are bound: arrays, settings and all other records.

    Pads of clients that were sent something else do not cancel, see `federation.secure_round.round_binding`.

    Args:
        content: of the message in which the client trains.
        masks: whether the clients learn masks of one noise, whose seed is then part of the hash.
    """
    digest = hashlib.sha256(b"fedmrn plugin secure binding")
    own = {"client"} if masks else {"client", "seed"}  # what differs from client to client in the task's record
    for key in sorted(content):
        if key == SECURE:
            continue
        record = content[key]
        if isinstance(record, ArrayRecord):
            parts: list[tuple[object, ...]] = [(name, a.dtype, a.shape, a.data) for name, a in record.items()]
        else:
            values: Mapping[str, Any] = record  # type: ignore[assignment]
            parts = [(name, values[name]) for name in sorted(values) if key != RECORD or name not in own]
        for part in ((key,), *parts):
            data = b"".join(map(_as_bytes, part))
            digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def _as_bytes(value: object) -> bytes:
    value = tuple(value) if isinstance(value, list) else value
    data = value if isinstance(value, bytes) else repr(value).encode()
    return len(data).to_bytes(8, "little") + data


def read_steps(content: RecordDict) -> Steps:
    """Return how the server asks the client to round its changes.

    Raises:
        PayloadError: it does not say, or says what no sum can hold.
    """
    record = cast(Mapping[str, Any], content.config_records[SECURE])
    bits, bound = record.get("bits"), record.get("bound")
    if not (isinstance(bits, int) and 2 <= bits <= MOST_BITS and isinstance(bound, float) and 0 < bound < np.inf):
        raise PayloadError(f"the secure sum has bits={bits} and bound={bound}", code="secure-steps", value=bits)
    return Steps(bits, bound)


def _signed_bits(largest: int) -> int:
    """Return the number of bits that hold all integers from -largest to largest in two's complement."""
    return bits_for(largest) + 1


def _change(before: NDArray[np.generic], after: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return the change of a tensor, float64; 0 for one that has not changed, whose values may be infinite."""
    if np.array_equal(before, after):
        return np.zeros(before.size)
    return after.astype(np.float64).reshape(-1) - before.astype(np.float64).reshape(-1)


def _scale(value: NDArray[np.generic]) -> float:
    """Return the number of steps of a unit, for integers and single numbers."""
    return float(1 << _FRACTION) if value.dtype.kind == "f" else 1.0


def _joined(changes: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate(changes) if changes else np.empty(0)


def _wrapped(steps: NDArray[np.float64], field: Field) -> Words:
    """Return integers in two's complement, in the words of a field."""
    wrapped: Words = steps.astype(np.int64).astype(field.dtype)
    return wrapped


def _signed(words: Words, field: Field) -> NDArray[np.float64]:
    """Return the integers, float64, that the low bits of words hold in two's complement."""
    spare = np.int64(64 - field.bits)
    return ((words.astype(np.uint64) << spare.astype(np.uint64)).view(np.int64) >> spare).astype(np.float64)
