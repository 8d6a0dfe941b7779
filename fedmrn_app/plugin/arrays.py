"""An app's arrays as a method sees them: coded tensors in one flat vector, a dense part, what is sent exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array, Layout, memory_order, placed

Values = Mapping[str, NDArray[np.generic]]

# How a tensor is sent: not at all; coded; densely; byte for byte; or not, because it is tied to an earlier coded one.
UNCHANGED, CODED, DENSE, EXACT, TIED = range(5)


def to_values(record: ArrayRecord) -> dict[str, NDArray[np.generic]]:
    """The arrays of a record by name, in its order."""
    return {name: array.numpy() for name, array in record.items()}


def to_record(values: Values) -> ArrayRecord:
    """The inverse of `to_values`."""
    return ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in values.items()})


def usual_ways(values: Values) -> NDArray[np.uint8]:
    """How each tensor is sent unless a client says otherwise: floating-point matrices and kernels are coded.

    Single numbers are sent exactly, for Flower's mean makes floating-point ones of counters.
    """
    ways = [
        EXACT if not np.issubdtype(value.dtype, np.floating) or value.size == 1 else CODED if value.ndim >= 2 else DENSE
        for value in values.values()
    ]
    return np.array(ways, np.uint8)


def checked_ways(data: bytes, values: Values) -> NDArray[np.uint8]:
    """How a client says that it sent each tensor, uint8 (tensors,).

    Raises:
        PayloadError: not one way for each tensor, or one that its type does not allow.
    """
    ways = np.frombuffer(data, np.uint8)
    usual = usual_ways(values)
    allowed = {CODED: (UNCHANGED, CODED, DENSE, TIED), DENSE: (UNCHANGED, DENSE), EXACT: (EXACT,)}
    if ways.shape != usual.shape or any(way not in allowed[one] for way, one in zip(ways, usual, strict=True)):
        raise PayloadError("reply names other ways of sending than its tensors allow")
    return ways


@dataclass(frozen=True)
class Parts:
    """Which tensors of an app's arrays are sent in which way.

    Attributes:
        coded: names, whose tensors make up the flat vector (d,) in this order; `layout` says how.
        dense: names, whose tensors make up the dense part (m,).
        exact: names of those that are sent byte for byte.
        tied: the name of the coded tensor that each tied one follows.
        layout: of the coded tensors.
        dense_sizes: the elements of each dense tensor.
    """

    coded: Sequence[str]
    dense: Sequence[str]
    exact: Sequence[str]
    tied: Mapping[str, str]
    layout: Layout
    dense_sizes: Sequence[int]

    @classmethod
    def of(cls, values: Values, ways: NDArray[np.uint8]) -> Parts:
        """Sort the tensors by their ways.

        Raises:
            PayloadError: a tied tensor was sent with other values than all coded ones.
        """
        coded, dense, exact = (
            [name for name, chosen in zip(values, ways, strict=True) if chosen == way] for way in (CODED, DENSE, EXACT)
        )
        tied = {}
        for name, way in zip(values, ways, strict=True):
            if way == TIED:
                other = find_tied(name, values, coded)
                if other is None:
                    raise PayloadError(f"reply names {name} as tied, which it is not")
                tied[name] = other
        layout = Layout(tuple(values[name].shape for name in coded))
        return cls(coded, dense, exact, tied, layout, [values[name].size for name in dense])

    def vector(self, values: Values) -> Float32Array:
        """The coded tensors as one vector, float32 (d,)."""
        return _join([values[name].transpose(memory_order(values[name].shape)) for name in self.coded])

    def dense_vector(self, values: Values) -> Float32Array:
        """The dense tensors as one vector, float32 (m,)."""
        return _join([values[name] for name in self.dense])

    def exact_bytes(self, values: Values) -> bytes:
        """The tensors that are sent byte for byte."""
        return b"".join(np.ascontiguousarray(values[name]).tobytes() for name in self.exact)

    def replaced(
        self, values: Values, vector: Float32Array, dense: Float32Array, exact: bytes
    ) -> dict[str, NDArray[np.generic]]:
        """The values with other coded, dense and exact tensors, each in its own type.

        Raises:
            PayloadError: `exact` has another length.
        """
        changed = dict(values)
        for name, part in zip(self.coded, self.layout.split(vector), strict=True):
            shape = values[name].shape
            back = np.argsort(memory_order(shape))
            changed[name] = placed(part, shape).transpose(back).astype(values[name].dtype)
        at = 0
        for name, size in zip(self.dense, self.dense_sizes, strict=True):
            changed[name] = dense[at : at + size].reshape(values[name].shape).astype(values[name].dtype)
            at += size
        expected = sum(values[name].nbytes for name in self.exact)
        if len(exact) != expected:
            raise PayloadError(f"reply has {len(exact)} bytes of exact tensors where {expected} were expected")
        at = 0
        for name in self.exact:
            size = values[name].nbytes
            changed[name] = np.frombuffer(exact[at : at + size], values[name].dtype).reshape(values[name].shape)
            at += size
        return {name: changed[self.tied.get(name, name)] for name in values}


def find_tied(name: str, values: Values, others: Sequence[str]) -> str | None:
    """The first of other tensors that holds the same values; None if none does."""
    return next((other for other in others if other != name and np.array_equal(values[other], values[name])), None)


def _join(arrays: Sequence[NDArray[np.generic]]) -> Float32Array:
    parts = [np.asarray(array, np.float32).reshape(-1) for array in arrays]
    return np.concatenate(parts) if parts else np.empty(0, np.float32)
