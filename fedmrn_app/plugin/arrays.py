"""An app's arrays as a method sees them: coded tensors in one flat vector, a dense part, and tensors sent exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.exchange.messages import from_array, one_line, to_array
from fedmrn_app.layout import Float32Array, Layout, memory_order, placed, slices
from fedmrn_app.plugin.comparison import find_tied, is_same
from fedmrn_app.wire.primitives import all_finite

Values = Mapping[str, NDArray[np.generic]]


class Way(IntEnum):
    """How a tensor is sent; the numbers travel."""

    UNCHANGED = 0  # not at all
    CODED = 1  # by the method's codec
    DENSE = 2  # in `dense_bits` per value
    EXACT = 3  # byte for byte
    TIED = 4  # not at all, because it equals an earlier coded tensor
    BOUNDED = 5  # with a bound on the error of each value, see `plugin/bounded.py`
    BESIDE = 6  # as Flower sends it, because the array that was sent is empty, or a string of bytes of another length


FROM_ZERO = 8  # is added to the way of a tensor whose values are coded, and not their differences from those sent
KINDS = FROM_ZERO - 1  # the bits of a way


def may_change_length(before: NDArray[np.generic]) -> bool:
    """Return whether an array that was sent may come back with another shape: an empty one, or a string of bytes.

    Apps send what is no number as a vector of bytes, such as the trees of XGBoost, which grow in each round.
    """
    return before.size == 0 or (before.ndim == 1 and before.dtype in (np.uint8, np.int8))


def only_arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    """Return the only ArrayRecord of a message, after its key.

    Raises:
        RunError: there is none, or there are several.
    """
    found = list(content.array_records.items())
    if len(found) != 1:
        reason = f"a message holds {len(found)} ArrayRecords; a downlink on a grid and secure sums need exactly one"
        raise RunError(f"{reason}; leave downlink and secure out", code="records", value=len(found))
    return found[0]


def to_values(record: ArrayRecord) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of a record by name, in its order, as views that can only be read.

    Raises:
        PayloadError: an array is damaged, or claims more values than it has.
    """
    return {name: _read(name, array) for name, array in record.items()}


def _read(name: str, array: Array) -> NDArray[np.generic]:
    try:
        return from_array(array)
    except Exception as error:  # of several kinds, because NumPy parses the header as Python
        reason = f"{name}: its bytes are no array ({one_line(str(error))})"
        raise PayloadError(reason, code="array", key=name) from None


def to_record(values: Values) -> ArrayRecord:
    """Return the record of arrays, the inverse of `to_values`."""
    return ArrayRecord({name: to_array(np.asarray(value, order="C")) for name, value in values.items()})


def check_finite(sent: Values, trained: Values) -> None:
    """Check that arrays are finite, except for infinities that the training left as they were, such as a mask's.

    Raises:
        RunError: one is not; the line names it and how many of its values are not finite.
    """
    for name, after in trained.items():
        before = sent[name]
        if not np.issubdtype(after.dtype, np.inexact) or (all_finite(before) and all_finite(after)):
            continue
        if is_same(before, after):
            continue
        for what, array in (("was sent", before), ("came back", after)):
            wrong = int(np.count_nonzero(~np.isfinite(array)))
            if wrong:
                reason = f"{name}: {what} with {wrong} of {array.size} values that are NaN or infinite"
                raise RunError(reason, code="not-finite", key=name, value=wrong)


def usual_ways(values: Values) -> NDArray[np.uint8]:
    """Return how each tensor is sent unless a client says otherwise, uint8 (tensors,).

    Floating-point tensors with two or more dimensions are coded. Single numbers are sent exactly, because Flower's mean
    turns counters into floating-point numbers.
    """
    exact = [not np.issubdtype(value.dtype, np.floating) or value.size == 1 for value in values.values()]
    ways = [Way.CODED if value.ndim >= 2 else Way.DENSE for value in values.values()]
    return np.where(exact, Way.EXACT, ways).astype(np.uint8)


def checked_ways(data: bytes, values: Values) -> NDArray[np.uint8]:
    """Return how a client says that it sent each tensor, uint8 (tensors,).

    Raises:
        PayloadError: there is not one way for each tensor, or a tensor's type does not allow its way.
    """
    ways, usual = np.frombuffer(data, np.uint8), usual_ways(values)
    if ways.shape == usual.shape:
        kinds, floats = ways & KINDS, usual != Way.EXACT
        real = np.array([np.issubdtype(value.dtype, np.floating) for value in values.values()], np.bool_)
        free = np.array([may_change_length(value) for value in values.values()], np.bool_)
        always = np.isin(kinds, (Way.UNCHANGED, Way.EXACT)) | ((kinds == Way.BESIDE) & free)
        plainer = floats & np.isin(kinds, (Way.DENSE, Way.BOUNDED))
        coded = (usual == Way.CODED) & np.isin(kinds, (Way.CODED, Way.TIED))
        if np.all((ways <= (FROM_ZERO | KINDS)) & (always | plainer | coded) & (real | (ways < FROM_ZERO))):
            return ways
    raise PayloadError("reply names ways of sending that its tensors do not allow", code="ways")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The tensors of an app's arrays, sorted by how they are sent.

    Attributes:
        coded: names of the tensors that make up the flat vector (d,), in its order.
        dense: names of the tensors that make up the dense part (m,), in its order.
        exact: names of the tensors that are sent byte for byte.
        tied: for each tied tensor, the name of the coded tensor that it equals.
        bounded: names of the tensors that are sent with a bound on the error of each value.
        beside: names of the tensors that Flower sends.
        layout: of the coded tensors.
        dense_sizes: number of elements of each dense tensor.
    """

    coded: Sequence[str]
    dense: Sequence[str]
    exact: Sequence[str]
    tied: Mapping[str, str]
    layout: Layout
    dense_sizes: Sequence[int]
    bounded: Sequence[str] = ()
    beside: Sequence[str] = ()

    @classmethod
    def of(cls, values: Values, ways: NDArray[np.uint8]) -> Parts:
        """Sort the tensors by their ways.

        Raises:
            PayloadError: a tied tensor was sent with other values than all coded ones.
        """
        names: dict[int, list[str]] = {number: [] for number in range(FROM_ZERO)}
        for name, way in zip(values, ways, strict=True):
            names[int(way) & KINDS].append(name)
        coded, dense, tied = names[Way.CODED], names[Way.DENSE], {}
        for name in names[Way.TIED]:
            other = find_tied(name, values, coded)
            if other is None:
                raise PayloadError(f"reply says that {name} is tied, and it is not", code="tied", value=name)
            tied[name] = other
        return cls(
            coded=coded,
            dense=dense,
            exact=names[Way.EXACT],
            tied=tied,
            layout=Layout(tuple(values[name].shape for name in coded)),
            dense_sizes=[values[name].size for name in dense],
            bounded=names[Way.BOUNDED],
            beside=names[Way.BESIDE],
        )

    def vector(self, values: Values) -> Float32Array:
        """Return the coded tensors as one vector, float32 (d,)."""
        return _join([values[name].transpose(memory_order(values[name].shape)) for name in self.coded])

    def update(self, base: Values, trained: Values) -> Float32Array:
        """Return the differences of the coded tensors, float32 (d,); those of float64 arrays are taken in float64."""
        update = np.empty(self.layout.count, np.float32)
        for name, part in zip(self.coded, self.layout.split(update), strict=True):
            before, after = (_at_least_float32(values[name]) for values in (base, trained))
            np.subtract(after, before, out=_in_shape(part, before.shape), casting="same_kind")
        return update

    def moved_in_float64(self, values: Values, update: Float32Array) -> dict[str, NDArray[np.generic]]:
        """Return the coded tensors of float64 plus their updates, float32 (d,), which are added in float64."""
        parts = zip(self.coded, self.layout.split(update), strict=True)
        return {
            name: np.add(values[name], _in_shape(part, values[name].shape), dtype=np.float64)
            for name, part in parts
            if values[name].dtype == np.float64
        }

    def dense_vector(self, values: Values) -> Float32Array:
        """Return the dense tensors as one vector, float32 (m,)."""
        return _join([values[name] for name in self.dense])

    def exact_size(self, values: Values) -> int:
        """Return the number of bytes of the tensors that are sent exactly."""
        return sum(values[name].nbytes for name in self.exact)

    def exact_bytes(self, values: Values) -> bytes:
        """Return the bytes of the tensors that are sent exactly."""
        return b"".join(np.ascontiguousarray(values[name]).tobytes() for name in self.exact)

    def replaced(
        self, values: Values, vector: Float32Array, dense: Float32Array, exact: bytes
    ) -> dict[str, NDArray[np.generic]]:
        """Return the arrays with other coded, dense and exact tensors, each in its own dtype.

        Raises:
            PayloadError: `exact` has another length.
        """
        changed = dict(values)
        for name, part in zip(self.coded, self.layout.split(vector), strict=True):
            changed[name] = in_dtype(_in_shape(part, values[name].shape), values[name].dtype)
        for name, place in zip(self.dense, slices(self.dense_sizes), strict=True):
            changed[name] = in_dtype(dense[place].reshape(values[name].shape), values[name].dtype)
        places = slices(values[name].nbytes for name in self.exact)
        expected = places[-1].stop if places else 0
        if len(exact) != expected:
            reason = f"reply has {len(exact)} bytes of exact tensors where {expected} were expected"
            raise PayloadError(reason, code="length", value=len(exact))
        for name, place in zip(self.exact, places, strict=True):
            changed[name] = np.frombuffer(exact[place], values[name].dtype).reshape(values[name].shape)
        return {name: changed[self.tied.get(name, name)] for name in values}


def in_dtype(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return decoded values in the type of what was sent; the largest one stands for all beyond its range."""
    if dtype.kind == "f" and dtype.itemsize < array.dtype.itemsize:
        most = np.finfo(dtype).max
        array = np.clip(array, -most, most)
    return array.astype(dtype, copy=False)


def _in_shape(part: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the elements of a coded tensor in its shape."""
    return placed(part, shape).transpose(np.argsort(memory_order(shape)))


def _at_least_float32(array: NDArray[np.generic]) -> NDArray[Any]:
    return array.astype(np.result_type(array.dtype, np.float32), copy=False)


def _join(arrays: Sequence[NDArray[np.generic]]) -> Float32Array:
    parts = [np.asarray(array, np.float32).reshape(-1) for array in arrays]
    return np.concatenate(parts) if parts else np.empty(0, np.float32)
