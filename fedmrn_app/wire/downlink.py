"""The global vector on its way to the clients, element by element; for differences on a lattice see `wire/lattice.py`.

float32, float16   d values
bfloat16           d values as uint16, the upper halves of float32
int8               T scales (float32), one per tensor, then d weights in steps of their tensor's scale
palette            the bytes of `wire/codebook.py`: exact, and short for vectors of few different values
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array
from fedmrn_app.wire.codebook import pack_palette, unpack_palette
from fedmrn_app.wire.primitives import finite

Elementwise = Literal["float32", "float16", "bfloat16", "int8", "palette"]

# steps of a lattice; each costs at most 0.1 points of accuracy
LATTICE_STEP = 1.0  # root mean squares of the first weights, for a tensor of mean size
LATTICE_FINE = 1 / 16  # root mean squares of the differences, for biases, batch norm and statistics
FINE_STEPS = 32  # of that size in about the largest difference, see `is_even`

_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "int8": np.uint8, "palette": np.uint8}


def pack_downlink(vector: Float32Array, sizes: Sequence[int], dtype: Elementwise) -> NDArray[Any]:
    """Round a vector of shape (d,) to the nearest values that `dtype` has, and return them as they are sent.

    Args:
        vector: float32 (d,), finite.
        sizes: the number of elements of each tensor, d in all.
        dtype: the type on the wire.

    Returns:
        float32 (d,), float16 (d,), uint16 (d,) for bfloat16, or bytes (uint8) for int8 and palette.
    """
    if dtype == "float32":
        return vector
    if dtype == "palette":
        return np.frombuffer(pack_palette(vector), np.uint8)
    if dtype == "float16":
        limit = np.finfo(np.float16).max
        return np.clip(vector, -limit, limit).astype(np.float16)
    if dtype == "bfloat16":
        words = vector.view(np.uint32)  # round to nearest, ties to even
        rounded = (words + np.uint32(0x7FFF) + (words >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
        return rounded.astype(np.uint16)
    tensors = np.split(vector, np.cumsum(sizes)[:-1])
    scales = np.array([np.abs(tensor).max(initial=0) / 127 for tensor in tensors], np.float32)
    scale = np.repeat(scales, sizes)
    steps = np.divide(vector, scale, out=np.zeros_like(vector), where=scale > 0)
    weights = np.clip(np.rint(steps), -127, 127).astype(np.int8)
    return np.concatenate([scales.view(np.uint8), weights.view(np.uint8)])


def unpack_downlink(packed: NDArray[Any], sizes: Sequence[int], dtype: Elementwise) -> Float32Array:
    """Return the float32 vector of shape (d,) that `pack_downlink` packed.

    Raises:
        PayloadError: `packed` has another shape or type, a palette is malformed, or the vector is not finite.
    """
    size = sum(sizes) + (4 * len(sizes) if dtype == "int8" else 0)
    if packed.dtype != _DTYPES[dtype] or (dtype != "palette" and packed.shape != (size,)):
        raise PayloadError(
            f"global vector came as {packed.dtype} {packed.shape}, expected {dtype} ({size},)",
            code="shape",
            value=packed.shape,
        )
    if dtype == "palette":
        return unpack_palette(packed.tobytes(), sum(sizes))
    if dtype == "bfloat16":
        vector = (packed.astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif dtype == "int8":
        scales = np.ascontiguousarray(packed[: 4 * len(sizes)]).view(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # the result is checked
            vector = packed[4 * len(sizes) :].view(np.int8).astype(np.float32) * np.repeat(scales, sizes)
    else:
        vector = packed.astype(np.float32, copy=False)
    return finite(vector, "global vector")
