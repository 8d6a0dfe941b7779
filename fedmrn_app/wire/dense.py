"""The dense part on the wire: batch norm, biases and running statistics in a chosen number of bits per value.

32 bits are float32, 16 are float16. Fewer are whole multiples of a step: tensor by tensor the step divides the range by
which the values differ from those the server has, or from zero where that is the smaller range, and what is sent is the
difference in steps, coded. As the multiples are of the value itself and not of the difference, a value that is not
negative, such as a variance, stays so.

Layout of fewer bits: for each tensor the step (float32, negative where the differences are from zero) and how fast
probabilities fall with the difference (a byte); then the coder's words.
"""

from __future__ import annotations

from collections.abc import Sequence

import constriction
import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array, slices
from fedmrn_app.wire.entropy import fall_of, falling_model, read_words, write_words
from fedmrn_app.wire.values import pack_floats, unpack_floats

DENSE_BITS = (4, 5, 6, 7, 8, 16, 32)
_HEAD = np.dtype([("step", "<f4"), ("fall", "u1")])
_LARGEST = np.finfo(np.float16).max
_SMALLEST = np.finfo(np.float32).tiny


def pack_dense(values: Float32Array, known: Float32Array, sizes: Sequence[int], bits: int) -> bytes:
    """Encode the dense part.

    Args:
        values: float32 (m,); what is not finite is written so that the reader refuses it.
        known: float32 (m,), the dense part that the server sent.
        sizes: the elements of each tensor, m in all.
        bits: one of DENSE_BITS.
    """
    if bits == 32:
        return pack_floats(values)
    if bits == 16:
        return np.clip(values, -_LARGEST, _LARGEST).astype("<f2").tobytes()
    limit = _limit(bits)
    heads = np.zeros(len(sizes), _HEAD)
    runs = []
    for head, where in zip(heads, slices(sizes), strict=True):
        x, reference = values[where], known[where]
        spread, size = _largest(x - reference), _largest(x)
        head["step"] = spread / limit if not spread > size else -max(size / limit, _SMALLEST)
        steps = _steps(x, head["step"]) - _base(reference, head["step"])
        run = np.clip(np.nan_to_num(steps), -limit, limit).astype(np.int32)
        if run.any():
            head["fall"] = fall_of(run)
        runs.append(run)
    coder = constriction.stream.stack.AnsCoder()
    for head, run in zip(heads[::-1], reversed(runs), strict=True):
        if head["fall"]:
            coder.encode_reverse(run + limit, falling_model(limit, int(head["fall"])))
    return heads.tobytes() + write_words(coder)


def unpack_dense(data: bytes | memoryview, known: Float32Array, sizes: Sequence[int], bits: int) -> Float32Array:
    """Return the dense part of shape (m,).

    Raises:
        PayloadError: another length, or values that are not finite.
    """
    count = known.size
    if bits == 32:
        return unpack_floats(data, count, "dense part")
    if bits == 16:
        if len(data) != 2 * count:
            raise PayloadError(f"dense part has {len(data)} bytes where {count} float16 values take {2 * count}")
        return _finite(np.frombuffer(data, "<f2").astype(np.float32))
    limit = _limit(bits)
    head_size = _HEAD.itemsize * len(sizes)
    if not head_size <= len(data) <= max_dense_bytes(sizes, bits):
        raise PayloadError(f"dense part has {len(data)} bytes where {count} values of {bits} bits were expected")
    heads = np.frombuffer(data[:head_size], _HEAD)
    _finite(heads["step"])
    coder = read_words(data[head_size:])
    values = np.empty(count, np.float32)
    for head, size, x in zip(heads, sizes, slices(sizes), strict=True):
        steps = _base(known[x], head["step"])
        if head["fall"] and size:
            steps += coder.decode(falling_model(limit, int(head["fall"])), size) - limit
        with np.errstate(over="ignore"):
            values[x] = known[x] if head["step"] == 0 else steps * np.abs(np.float64(head["step"]))
    if not coder.is_empty():
        raise PayloadError("dense part goes on after its last value")
    return _finite(values)


def max_dense_bytes(sizes: Sequence[int], bits: int) -> int:
    """The most bytes that the dense part takes."""
    if bits >= 16:
        return bits // 8 * sum(sizes)
    # no value has a probability below 2^-24
    return _HEAD.itemsize * len(sizes) + 3 * sum(sizes) + 8


def _limit(bits: int) -> int:
    return (1 << bits - 1) - 1


def _largest(x: Float32Array) -> np.float32:
    largest: np.float32 = np.abs(x).max(initial=np.float32(0))
    return largest


def _steps(x: Float32Array, step: np.float32) -> NDArray[np.float64]:
    """Each value as a whole number of steps."""
    with np.errstate(invalid="ignore"):  # what is not finite is refused by the reader
        return np.rint(x / np.abs(np.float64(step))) if step else np.zeros(x.shape)


def _base(known: Float32Array, step: np.float32) -> NDArray[np.float64]:
    """What the differences are from."""
    return _steps(known, step) if step > 0 else np.zeros(known.shape)


def _finite(values: Float32Array) -> Float32Array:
    if not np.isfinite(values).all():
        raise PayloadError("dense part holds values that are not finite")
    return values
