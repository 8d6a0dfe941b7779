"""What a reply's arrays have of their own: which ones there are, in which order, and their types.

Flower takes replies with the arrays in another order than in the message, with a part of them, and with other types.
So does the plug-in. A reply says only what differs from the message:

    of      key of the ArrayRecord in the message, where it is not the one of the same key or the first
    order   positions in the message's record of the arrays that came back, uint32
    types   a byte per array: 0 for the type that was sent, or the number of a type from 1; a number that is alone in
            its array has 64 more if its shape is () and was not, 128 more if its shape is (1,) and was not
    pairs   True if complex arrays are coded as pairs of real numbers
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ConfigRecord
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.plugin.arrays import FROM_ZERO, KINDS, Values, Way, may_change_length, usual_ways
from fedmrn_app.plugin.comparison import Change, is_same, squared_lengths
from fedmrn_app.plugin.fidelity import FIRST_ROUNDS
from fedmrn_app.plugin.once import tell_once
from fedmrn_app.plugin.orthonormal import is_orthonormal
from fedmrn_app.plugin.pairs import from_pairs, is_paired, to_pairs
from fedmrn_app.plugin.row_statistics import is_statistic
from fedmrn_app.plugin.vectors import is_of_model, send_with_neighbours, way_of_vector

_TYPES = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16")
_SCALAR, _SINGLE = 64, 128
_MOST_FLOAT32 = float(np.finfo(np.float32).max) / 4
_SHAPES: Mapping[int, tuple[int, ...]] = {_SCALAR: (), _SINGLE: (1,)}
_GROWN = (
    "came back more than four times as long as it was sent, as sums do and trained weights do not; it is sent byte for "
    "byte"
)
_NO_DIFFERENCES = (
    "the arrays that came back are close to those that were sent, as trained weights are; if the app returns weights, "
    "leave reply out"
)
_BASIS = (
    "has orthonormal columns or rows, as in power iteration, whose results have more digits than those of a training; "
    "it is sent byte for byte"
)


@dataclass(frozen=True)
class ReplyForm:
    """The arrays of a reply.

    Attributes:
        names: of the arrays, in their order.
        types: bytes as above.
        pairs: whether complex arrays are coded as pairs of real numbers.
    """

    names: tuple[str, ...]
    types: bytes
    pairs: bool = False

    @classmethod
    def of(cls, sent: Values, trained: Values, *, pairs: bool = False) -> ReplyForm:
        """Return the form of a reply to arrays that were sent; `pairs` is whether the server reads them.

        Raises:
            RunError: an array was not sent, has another shape, or has a type that is not known here.
        """
        if unknown := sorted(set(trained) - set(sent)):
            other = ", ".join(unknown[:3])
            raise RunError(f"the reply has other arrays than were sent: {other}", code="names", value=other)
        types = bytes(_type_of(name, sent[name], value) for name, value in trained.items())
        return cls(tuple(trained), types, pairs and any(is_paired(sent[x].shape, y.dtype) for x, y in trained.items()))

    @classmethod
    def read(cls, record: Mapping[str, Any], sent: Values) -> ReplyForm:
        """Return the form that a reply says that it has.

        Raises:
            PayloadError: there are no such arrays or types.
        """
        names, order, types = list(sent), record.get("order"), record.get("types")
        if order is not None:
            places = np.frombuffer(order, "<u4").tolist() if isinstance(order, bytes) and len(order) % 4 == 0 else [-1]
            if len(set(places)) != len(places) or not all(0 <= place < len(names) for place in places):
                raise PayloadError("reply names arrays that were not sent", code="names")
            names = [names[place] for place in places]
        if types is None:
            types = bytes(len(names))
        if not isinstance(types, bytes) or len(types) != len(names) or any(not _is_known(code) for code in types):
            raise PayloadError("reply names types that are not known", code="dtype")
        return cls(tuple(names), types, record.get("pairs") is True)

    def write(self, record: ConfigRecord, sent: Values) -> None:
        """Note in a reply what differs from the arrays that were sent."""
        if list(self.names) != list(sent):
            places = {name: place for place, name in enumerate(sent)}
            record["order"] = np.array([places[name] for name in self.names], "<u4").tobytes()
        if any(self.types):
            record["types"] = self.types
        if self.pairs:
            record["pairs"] = True

    def base(self, sent: Values, ways: NDArray[np.uint8] | None = None) -> dict[str, NDArray[np.generic]]:
        """Return the arrays that the reply's are coded from, in the order of the message and the types of the reply.

        With `pairs` complex arrays are real ones.

        Args:
            sent: the arrays that were sent.
            ways: of these arrays; those with `FROM_ZERO` are coded from zeros.
        """
        found: dict[str, NDArray[np.generic]] = {}
        codes = dict(zip(self.names, self.types, strict=True))
        for number, name in enumerate(name for name in sent if name in codes):
            value, code = sent[name], codes[name]
            dtype = _dtype(code, value)
            shape = _SHAPES.get(code & 192, value.shape) if value.size == 1 else value.shape
            if ways is not None and ways[number] & FROM_ZERO:
                found[name] = np.zeros(shape, dtype)
            else:
                with np.errstate(invalid="ignore", over="ignore"):
                    found[name] = value.astype(dtype, copy=False).reshape(shape)
            if self.pairs and is_paired(value.shape, dtype):
                found[name] = to_pairs(found[name])
        return found

    def coded(self, sent: Values, trained: Values) -> dict[str, NDArray[np.generic]]:
        """Return the arrays of the reply as they are coded: with `pairs`, complex ones as real ones."""
        return {
            name: to_pairs(value) if self.pairs and is_paired(sent[name].shape, value.dtype) else value
            for name, value in trained.items()
        }

    def decoded(self, sent: Values, found: Values) -> dict[str, NDArray[np.generic]]:
        """Return decoded arrays as the app sent them, the inverse of `coded`."""
        codes = dict(zip(self.names, self.types, strict=True))
        paired = {name for name in found if self.pairs and is_paired(sent[name].shape, _dtype(codes[name], sent[name]))}
        return {name: from_pairs(value) if name in paired else value for name, value in found.items()}


def _type_of(name: str, before: NDArray[np.generic], after: NDArray[np.generic]) -> int:
    """Return the byte of an array, which may have another shape where `may_change_length` says so.

    Raises:
        RunError: see `ReplyForm.of`.
    """
    code, kind = 0, after.dtype.newbyteorder("<").str
    if after.dtype != before.dtype:
        if kind not in _TYPES:
            reason = f"{name}: was sent as {before.dtype} and came back as {after.dtype}, which is no number"
            raise RunError(reason, code="dtype", key=name, value=str(after.dtype))
        code = _TYPES.index(kind) + 1
    if after.shape != before.shape and not may_change_length(before):
        single = next((flag for flag, shape in _SHAPES.items() if shape == after.shape), 0)
        if before.size != 1 or not single:
            reason = f"{name}: was sent with the shape {before.shape} and came back with {after.shape}"
            raise RunError(reason, code="shape", key=name, value=after.shape)
        code |= single
    return code


def _dtype(code: int, before: NDArray[np.generic]) -> np.dtype[Any]:
    """Return the type of an array of the reply."""
    return np.dtype(_TYPES[(code & 63) - 1]) if code & 63 else before.dtype


def _is_known(code: int) -> bool:
    return (code & 63) <= len(_TYPES) and code & 192 != 192


def ways_for_reply(
    base: Values,
    trained: Values,
    *,
    differences: bool = False,
    further: bool = False,
    beside: Collection[tuple[int, ...]] = (),
    server_round: int = 0,
) -> NDArray[np.uint8]:
    """Return `usual_ways` of a reply with the exceptions that keep each value right, uint8 (tensors,).

    Arrays of another shape are sent as Flower does; statistics, see `is_statistic`, what belongs to them, and values
    beyond float32 exactly. Vectors that are no biases or statistics of the model are sent exactly, and long ones with a
    bound on the error of each value. Arrays that are much shorter than their difference from what was sent are
    differences themselves, such as gradients, and are coded as they are; with `differences` all arrays are. Of a
    `further` record only updates of what was sent are coded: other arrays, such as the changes of SCAFFOLD's control
    variates, are summands of a sum in which the errors would stay. So is what has a shape in `beside`, those of
    statistics in all records: Adam divides its first moments by the roots of its second ones. After the first rounds,
    when weights have their size, matrices that come back more than four times as long as they were sent are sums too,
    such as those of k-means, and orthonormal matrices are bases of subspaces, such as those of power iteration; both
    are sent exactly. `server_round` is 0 where that does not matter.
    """
    ways, statistics, uneven = usual_ways(base), list[str](), set[int]()
    for number, (name, before) in enumerate(base.items()):
        after = trained[name]
        if after.shape != before.shape:
            ways[number] = Way.BESIDE
            continue
        matrix, change = ways[number] == Way.CODED, Change(before, after)
        counts = ways[number] == Way.DENSE and not is_of_model(name, after, base)
        if (matrix or counts or not before.any()) and is_statistic(before, after):
            # a bias that begins at zero may be without a negative value by chance
            statistics += [name] if (matrix or counts) and not is_same(before, after) else []
            ways[number] = Way.EXACT
        if not all(map(_fits_float32, (before, after))):
            ways[number] = Way.EXACT
        if ways[number] in (Way.CODED, Way.DENSE) and not differences:
            reason = _why_exact(change) if matrix and server_round > FIRST_ROUNDS else ""
            if reason:
                tell_once(name, reason)
            if reason or (further and (before.shape in beside or not change.is_update)):
                ways[number] = Way.EXACT
        if ways[number] == Way.DENSE:
            ways[number] = way_of_vector(name, np.zeros_like(before) if differences else before, after, base)
            if ways[number] != Way.DENSE and is_of_model(name, after, base):
                uneven.add(number)
        if ways[number] in (Way.CODED, Way.DENSE, Way.BOUNDED) and (differences or change.is_difference):
            ways[number] |= FROM_ZERO
    _send_with_statistics(ways, statistics, base, trained)
    send_with_neighbours(ways, uneven, base)
    if differences and _are_weights(ways, base, trained):
        tell_once("reply=difference", _NO_DIFFERENCES)
    return ways


def _are_weights(ways: NDArray[np.uint8], base: Values, trained: Values) -> bool:
    """Return whether the coded arrays of a reply are close to those that were sent, which differences are not."""
    coded = [name for name, way in zip(base, ways, strict=True) if way & KINDS == Way.CODED]
    lengths = [squared_lengths(base[name], trained[name]) for name in coded]
    length, difference = (sum(squares) for squares in zip(*lengths, strict=True)) if lengths else (0.0, 0.0)
    return 4 * difference < length


def _why_exact(change: Change) -> str:
    """Return why a matrix is sent exactly after the first rounds; empty if it is not."""
    if change.has_grown:
        return _GROWN
    if any(map(is_orthonormal, (change.before, change.after))) and not is_same(change.before, change.after):
        return _BASIS
    return ""


def statistic_shapes(replied: Mapping[str, Values], records: Mapping[str, Values]) -> set[tuple[int, ...]]:
    """Return the shapes of the arrays of statistics in a reply.

    Args:
        replied: arrays of the reply by the keys of their records.
        records: those of the message.
    """
    pairs = (
        (records[key][name], after)
        for key, values in replied.items()
        for name, after in values.items()
        if name in records.get(key, {})
    )
    return {
        after.shape
        for before, after in pairs
        if before.shape == after.shape and after.ndim and after.dtype.kind == "f" and is_statistic(before, after)
    }


def _send_with_statistics(ways: NDArray[np.uint8], statistics: Sequence[str], base: Values, trained: Values) -> None:
    """Send arrays exactly that belong to statistics in their record, such as X'y to X'X and sums to counts.

    Those are arrays of the same shape as a matrix of statistics, and others unless they are updates of what was sent.
    """
    shapes = {base[name].shape for name in statistics if base[name].ndim >= 2}
    for number, (name, before) in enumerate(base.items()) if statistics else ():
        if ways[number] & KINDS in (Way.CODED, Way.DENSE, Way.BOUNDED) and (
            before.shape in shapes or not Change(before, trained[name]).is_update
        ):
            ways[number] = Way.EXACT


def _fits_float32(array: NDArray[Any]) -> bool:
    """Return whether no finite value of an array, nor a difference of two such, is beyond the range of float32."""
    wide = array.dtype.kind == "f" and array.dtype.itemsize > 4 and array.size
    return not wide or max(-float(array.min()), float(array.max())) < _MOST_FLOAT32


def base_keys(replied: Mapping[str, Values], records: Mapping[str, Values]) -> dict[str, str | None]:
    """Return the keys of the message's arrays that each ArrayRecord of a reply is coded from.

    Args:
        replied: arrays of the reply by the keys of their records.
        records: those of the message.

    Returns:
        The same key if the message has it, or else the one with arrays of these names and shapes that is the nearest of
        those that no other record is coded from. None if there is none; a reply's only record belongs to the message's
        only one.
    """
    records = {key: values for key, values in records.items() if values}
    if len(replied) == len(records) == 1:
        return {key: next(iter(records)) for key in replied}
    found: dict[str, str | None] = {key: key if key in records else None for key in replied}
    for key in (key for key in replied if key not in records):
        shapes = {name: value.shape for name, value in replied[key].items()}
        free = (other for other in records if other not in found.values())
        fitting = [other for other in free if shapes and _holds(records[other], shapes)]
        if len(fitting) > 1:
            fitting = [min(fitting, key=partial(_distance, records, replied[key]))]
        found[key] = next(iter(fitting), None)
    return found


def _distance(records: Mapping[str, Values], arrays: Values, key: str) -> float:
    """Return the squared distance of arrays from those of a record."""
    return sum(squared_lengths(records[key][name], value)[1] for name, value in arrays.items())


def _holds(values: Values, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    return all(name in values and values[name].shape == shape for name, shape in shapes.items())


def default_key(key: str, records: Mapping[str, Values]) -> str:
    """Return the key of the message's arrays for a reply that names none."""
    return key if key in records else next(iter(records), "")
