"""The dense part (batch norm, biases and running statistics) in 4 to 32 bits per value.

    32 bits       float32
    16 bits       float16
    fewer bits    for each tensor:  step    float32, negative if the differences are from zero
                                    decay   one byte, how fast probabilities fall with the difference
                  then float32 values of the tensors whose step is infinite
                  then the differences of the others in steps, symbols of one lane, see `wire/entropy.py`

With fewer than 16 bits each value is a whole multiple of its tensor's step. The step divides the range of the values,
or that of their differences from the values that the server sent if that range is smaller. Multiples are of the value
and not of the difference, so a value that is not negative, such as a variance, does not become negative. A tensor that
one step does not suit is sent in float32, such as the statistics of inputs of mixed scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array, slices
from fedmrn_app.wire.primitives import finite, pack_floats, unpack_floats, wrong_length

DENSE_BITS = (4, 5, 6, 7, 8, 16, 32)
_HEAD = np.dtype([("step", "<f4"), ("decay", "u1")])
_MAX_FLOAT16 = np.finfo(np.float16).max
_MIN_NORMAL = np.finfo(np.float32).tiny
_SPREAD = 1000.0  # of the largest change over one of the small ones; those of normalized inputs are below 150
_SMALL = 0.1  # share of the changes that may be smaller than that one


def pack_dense(
    values: Float32Array, known: Float32Array, sizes: Sequence[int], bits: int, *, exact: bool = True
) -> bytes:
    """Encode the dense part.

    Args:
        values: float32 (m,); the reader refuses values that are not finite.
        known: float32 (m,), the dense part that the server sent.
        sizes: the number of elements of each tensor, m in all.
        bits: one of DENSE_BITS.
        exact: whether tensors that one step does not suit are sent in float32, see `is_even`.
    """
    if bits == 32:
        return pack_floats(values)
    if bits == 16:
        return np.clip(values, -_MAX_FLOAT16, _MAX_FLOAT16).astype("<f2").tobytes()
    from fedmrn_app.wire.entropy import (
        encode_symbols,
        fit_decay,
        geometric_model,
    )  # Numba takes most of what an import loads

    limit = most_steps(bits)
    heads = np.zeros(len(sizes), _HEAD)
    runs, whole = [], []
    for head, part in zip(heads, slices(sizes), strict=True):
        x, reference = values[part], known[part]
        if exact and not is_even(reference, x, limit):
            head["step"] = np.inf
            whole.append(pack_floats(x))
            runs.append(np.empty(0, np.int32))
            continue
        moved, size = _largest(x - reference), _largest(x)
        head["step"] = moved / limit if not moved > size else -max(size / limit, _MIN_NORMAL)
        steps = _in_steps(x, head["step"]) - _base(reference, head["step"])
        run = np.clip(np.nan_to_num(steps), -limit, limit).astype(np.int32)
        if run.any():
            head["decay"] = fit_decay(run)
        runs.append(run)
    pairs = zip(heads["decay"].tolist(), runs, strict=True)
    coded = [(run + limit, geometric_model(limit, decay)) for decay, run in pairs if decay]
    return heads.tobytes() + b"".join(whole) + encode_symbols(coded, lanes=1)


def is_even(before: NDArray[Any], after: NDArray[Any], limit: int, spread: float = _SPREAD) -> bool:
    """Return whether one step for all values loses few of the changes, and no small value of a vector of variances.

    Args:
        before: the values that the server sent.
        after: those that are sent back, of the same shape.
        limit: the largest multiple of a step.
        spread: ratio of the largest change to the small ones above which too many are lost.
    """
    changes = np.abs(np.subtract(after, before, dtype=np.float64))
    changes = changes[changes > 0]
    if not changes.size:
        return True
    largest = changes.max()
    if largest > spread * np.quantile(changes, _SMALL):
        return False
    if min(before.min(), after.min()) < 0:
        return True
    step = min(largest, float(after.max())) / limit
    return bool(step <= np.min(after, where=after > 0, initial=np.inf))


def unpack_dense(data: bytes | memoryview, known: Float32Array, sizes: Sequence[int], bits: int) -> Float32Array:
    """Return the dense part of shape (m,) that `pack_dense` encoded with the same arguments.

    Raises:
        PayloadError: `data` is malformed or has another length, or values are not finite.
    """
    count = known.size
    if bits == 32:
        return unpack_floats(data, count, "dense part")
    if bits == 16:
        if len(data) != 2 * count:
            raise wrong_length("dense part", data, f"where {count} float16 values take {2 * count}")
        return finite(np.frombuffer(data, "<f2").astype(np.float32), "dense part")
    limit = most_steps(bits)
    head_size = _HEAD.itemsize * len(sizes)
    if not head_size <= len(data) <= max_dense_bytes(sizes, bits):
        raise wrong_length("dense part", data, f"where {count} values of {bits} bits were expected")
    heads = np.frombuffer(data[:head_size], _HEAD)
    whole = np.isposinf(heads["step"])
    finite(np.where(whole, 0, heads["step"]), "dense part")
    place, end = head_size, head_size + 4 * int(whole @ np.asarray(sizes, np.int64))
    from fedmrn_app.wire.entropy import SymbolReader, geometric_model  # Numba takes most of what an import loads

    reader = SymbolReader(data[end:], lanes=1)
    values = np.empty(count, np.float32)
    for head, size, part in zip(heads, sizes, slices(sizes), strict=True):
        if np.isposinf(head["step"]):
            values[part] = unpack_floats(data[place : place + 4 * size], size, "dense part")
            place += 4 * size
            continue
        steps = _base(known[part], head["step"])
        if head["decay"] and size:
            steps += reader.read(geometric_model(limit, int(head["decay"])), size).astype(np.int32) - limit
        with np.errstate(over="ignore"):
            values[part] = known[part] if head["step"] == 0 else steps * np.abs(np.float64(head["step"]))
    reader.check_end("dense part")
    return finite(values, "dense part")


def max_dense_bytes(sizes: Sequence[int], bits: int) -> int:
    """Return the largest number of bytes that the dense part takes."""
    if bits >= 16:
        return bits // 8 * sum(sizes)
    return _HEAD.itemsize * len(sizes) + 4 * sum(sizes) + 8  # float32; all probabilities are at least 2^-24


def usual_dense_bytes(sizes: Sequence[int], bits: int) -> float:
    """Return about how many bytes the dense part takes; coded values are often a little shorter than `bits`."""
    heads = _HEAD.itemsize * len(sizes) if bits < 16 else 0
    return heads + bits * sum(sizes) / 8


def most_steps(bits: int) -> int:
    """Return the largest multiple of a step that fewer than 16 bits hold."""
    return (1 << bits - 1) - 1


def _largest(x: Float32Array) -> np.float32:
    largest: np.float32 = np.abs(x).max(initial=np.float32(0))
    return largest


def _in_steps(x: Float32Array, step: np.float32) -> NDArray[np.float64]:
    """Return each value as a whole number of steps."""
    with np.errstate(invalid="ignore"):  # the reader refuses values that are not finite
        return np.rint(x / np.abs(np.float64(step))) if step else np.zeros(x.shape)


def _base(known: Float32Array, step: np.float32) -> NDArray[np.float64]:
    """Return the numbers of steps that the differences are from."""
    return _in_steps(known, step) if step > 0 else np.zeros(known.shape)
