"""A vector on a grid: whole steps away from a reference that both sides have, entropy-coded tensor by tensor.

The step of a tensor is a share of the root mean square of its reference. What is read is `reference + steps * step`,
by operations that IEEE 754 rounds exactly, so both sides have the same bits; the step travels too.

Layout, for each tensor: its step (float32), the largest number of steps K that has a symbol (a byte), how many elements
lie beyond (uint32), a weight of each symbol -K..K and of the one for those beyond (a byte each, see `_weights`); then
the elements beyond (int32), and the coder's words.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import constriction
import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array
from fedmrn_app.wire.entropy import categorical, read_words, write_words

_HEAD = np.dtype([("step", "<f4"), ("largest", "u1"), ("beyond", "<u4")])
_LARGEST = 127
_FAR = 1 << 30  # steps; nothing that is finite and trained comes near


def pack_grid(vector: Float32Array, reference: Float32Array, sizes: Sequence[int], step: float) -> bytes:
    """Round to the grid and encode.

    Args:
        vector: float32 (d,), finite.
        reference: float32 (d,), what both sides have.
        sizes: the elements of each tensor, d in all.
        step: in root mean squares of the reference.
    """
    heads = np.zeros(len(sizes), _HEAD)
    tables, far, runs = [], [], []
    for head, part in zip(heads, _tensors(sizes), strict=True):
        head["step"] = _step(vector[part], reference[part], step)
        steps = np.rint((vector[part].astype(np.float64) - reference[part]) / np.float64(head["step"]))
        run = np.clip(steps, -_FAR, _FAR).astype(np.int64)
        largest = int(min(_LARGEST, np.abs(run).max(initial=0)))
        beyond = np.abs(run) > largest
        head["largest"], head["beyond"] = largest, np.count_nonzero(beyond)
        symbols = np.where(beyond, 2 * largest + 1, run + largest).astype(np.int32)
        tables.append(_quantise(np.bincount(symbols, minlength=2 * largest + 2)))
        far.append(run[beyond].astype("<i4"))
        runs.append(symbols)
    coder = constriction.stream.stack.AnsCoder()
    for symbols, table in zip(reversed(runs), reversed(tables), strict=True):
        if np.count_nonzero(table) > 1:
            coder.encode_reverse(symbols, categorical(_weights(table)))
    parts = [piece for head, table in zip(heads, tables, strict=True) for piece in (head.tobytes(), table.tobytes())]
    return b"".join([*parts, *(values.tobytes() for values in far), write_words(coder)])


def unpack_grid(data: bytes, reference: Float32Array, sizes: Sequence[int]) -> Float32Array:
    """Return the rounded vector, float32 (d,).

    Raises:
        PayloadError: `data` is not what `pack_grid` makes for such a reference.
    """
    view = memoryview(data)
    heads, tables, at = [], [], 0
    for size in sizes:
        if len(view) < at + _HEAD.itemsize:
            raise PayloadError("grid ends within its head")
        head = np.frombuffer(view[at : at + _HEAD.itemsize], _HEAD)[0]
        at += _HEAD.itemsize
        table = np.frombuffer(view[at : at + 2 * int(head["largest"]) + 2], np.uint8)
        at += table.size
        wrong = table.size != 2 * int(head["largest"]) + 2 or int(head["beyond"]) > size
        if wrong or not (np.isfinite(head["step"]) and head["step"] > 0) or (size and not table.any()):
            raise PayloadError("grid has a malformed head")
        heads.append(head)
        tables.append(table)
    counts = [int(head["beyond"]) for head in heads]
    if len(view) < at + 4 * sum(counts):
        raise PayloadError("grid ends within its values")
    far = np.frombuffer(view[at : at + 4 * sum(counts)], "<i4")
    coder = read_words(view[at + 4 * sum(counts) :])
    vector = np.empty(sum(sizes), np.float32)
    for head, table, part, values in zip(
        heads, tables, _tensors(sizes), np.split(far, np.cumsum(counts)[:-1]), strict=True
    ):
        vector[part] = _read(coder, head, table, reference[part], values)
    if not coder.is_empty():
        raise PayloadError("grid goes on after its last element")
    if not np.isfinite(vector).all():
        raise PayloadError("grid holds values that are not finite")
    return vector


def _read(
    coder: constriction.stream.stack.AnsCoder,
    head: np.void,
    table: NDArray[np.uint8],
    reference: Float32Array,
    far: NDArray[np.int32],
) -> Float32Array:
    """One tensor."""
    largest = int(head["largest"])
    present = np.flatnonzero(table)
    if present.size > 1:
        symbols = coder.decode(categorical(_weights(table)), reference.size)
    else:
        symbols = np.full(reference.size, present[0] if present.size else 0, np.int32)
    run = symbols.astype(np.int64) - largest
    beyond = symbols == 2 * largest + 1
    if np.count_nonzero(beyond) != far.size:
        raise PayloadError(f"grid announces {far.size} elements beyond its symbols and has {np.count_nonzero(beyond)}")
    run[beyond] = far
    with np.errstate(over="ignore"):  # what comes of it is checked
        moved: Float32Array = run.astype(np.float32) * np.float32(head["step"])
        moved += reference
    return moved


def _tensors(sizes: Sequence[int]) -> list[slice]:
    return [slice(*bounds) for bounds in pairwise([0, *accumulate(sizes)])]


def _step(vector: Float32Array, reference: Float32Array, share: float) -> np.float32:
    """A share of the root mean square of the reference; of the differences from it where it is all zero."""
    for values in (reference.astype(np.float64), vector.astype(np.float64) - reference):
        size = float(np.sqrt(np.mean(np.square(values)))) * share if values.size else 0.0
        if np.float32(size) >= np.finfo(np.float32).tiny:
            return np.float32(size)
    return np.float32(1)


def _quantise(counts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Counts as bytes whose `_weights` are in about their proportion; 0 for what does not occur, and nothing else."""
    coarse = _weights(np.arange(1, 256, dtype=np.uint8))
    share = counts * (coarse[-1] / max(1, counts.max(initial=0)))
    byte = 1 + np.clip(np.searchsorted(coarse, share), 0, 254)
    return np.where(counts > 0, byte, 0).astype(np.uint8)


def _weights(table: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The weight of each byte: eight to the doubling, from whole numbers; 0 for 0."""
    b = table.astype(np.int64) - 1
    return np.where(table > 0, np.left_shift(8 + (b & 7), np.maximum(b, 0) >> 3), 0).astype(np.float64)
