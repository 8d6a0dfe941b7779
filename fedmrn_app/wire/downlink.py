"""The global vector on its way to the clients, in float32 or fewer bits per weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Float32Array
from fedmrn_app.wire.grid import pack_grid, unpack_grid
from fedmrn_app.wire.palette import pack_palette, unpack_palette

DownlinkDtype = Literal["float32", "float16", "bfloat16", "int8", "grid"]
DOWNLINK_DTYPES: tuple[DownlinkDtype, ...] = get_args(DownlinkDtype)
GRID_STEP = 0.25  # root mean squares of a tensor's first weights: costs no accuracy that one can measure
Packing = Literal[DownlinkDtype, "palette"]  # the palette is exact, and short for vectors of few different values


def pack_downlink(
    vector: Float32Array,
    sizes: Sequence[int],
    dtype: Packing,
    reference: Float32Array | None = None,
    step: float = GRID_STEP,
) -> NDArray[Any]:
    """Round a vector of shape (d,) to the nearest value that `dtype` has.

    Args:
        vector: float32 (d,), finite.
        sizes: the elements of each tensor, d in all; `int8` gives each a scale of its own.
        dtype: the type on the wire.
        reference: float32 (d,), the vector before the first round, around which a `grid` is laid; None for zeros.
        step: of a grid, see `wire/grid.py`.

    Returns:
        float32 (d,), float16 (d,), uint16 (d,) for bfloat16, or uint8: for int8 the float32 scales, then the weights;
        for `palette` and `grid` what `wire/palette.py` and `wire/grid.py` write.
    """
    if dtype == "float32":
        return vector
    if dtype == "palette":
        return np.frombuffer(pack_palette(vector), np.uint8)
    if dtype == "grid":
        return np.frombuffer(pack_grid(vector, _or_zeros(reference, sizes), sizes, step), np.uint8)
    if dtype == "float16":
        limit = np.finfo(np.float16).max
        return np.clip(vector, -limit, limit).astype(np.float16)
    if dtype == "bfloat16":
        words = vector.view(np.uint32)  # round to the nearest, ties to even
        rounded = (words + np.uint32(0x7FFF) + (words >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
        return rounded.astype(np.uint16)
    tensors = np.split(vector, np.cumsum(sizes)[:-1])
    scales = np.array([np.abs(tensor).max(initial=0) / 127 for tensor in tensors], np.float32)
    steps = np.divide(vector, np.repeat(scales, sizes), out=np.zeros_like(vector), where=np.repeat(scales, sizes) > 0)
    weights = np.clip(np.rint(steps), -127, 127).astype(np.int8)
    return np.concatenate([scales.view(np.uint8), weights.view(np.uint8)])


def unpack_downlink(
    packed: NDArray[Any], sizes: Sequence[int], dtype: Packing, reference: Float32Array | None = None
) -> Float32Array:
    """Return the float32 vector of shape (d,) that `pack_downlink` wrote.

    Raises:
        ValueError: `packed` has another shape or type.
        PayloadError: a palette or a grid is malformed.
    """
    if dtype == "palette":
        return unpack_palette(packed.tobytes(), sum(sizes))
    if dtype == "grid":
        return unpack_grid(packed.tobytes(), _or_zeros(reference, sizes), sizes)
    expected = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "int8": np.uint8}[dtype]
    size = sum(sizes) + (4 * len(sizes) if dtype == "int8" else 0)
    if packed.dtype != expected or packed.shape != (size,):
        raise ValueError(f"global vector came as {packed.dtype} {packed.shape}, expected {dtype} ({size},)")
    if dtype == "bfloat16":
        return (packed.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == "int8":
        scales = np.ascontiguousarray(packed[: 4 * len(sizes)]).view(np.float32)
        return packed[4 * len(sizes) :].view(np.int8).astype(np.float32) * np.repeat(scales, sizes)
    return packed.astype(np.float32, copy=False)


def _or_zeros(reference: Float32Array | None, sizes: Sequence[int]) -> Float32Array:
    return np.zeros(sum(sizes), np.float32) if reference is None else reference
