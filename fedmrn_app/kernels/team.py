"""A compiled loop over parts of vectors, shared out among PyTorch's own threads where a part is long enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from numba import types
from torch import Tensor

from fedmrn_app.kernels.counter_rng import split_key
from fedmrn_app.kernels.openmp import openmp
from fedmrn_app.layout import Float32Array

PART = 1 << 16  # elements that are worth a thread

# loop(four vectors, gradient, settings, number of the first random word, high word of the key)
LOOP = types.void(*[types.Array(types.float32, 1, "C")] * 6, types.uint32, types.uint32)
_ENTRY = types.void(types.CPointer(types.CPointer(types.float32)))
_VECTORS = 5  # the gradient is the last
_SETTINGS = 2  # numbers that a loop has besides: room for as many as any loop reads

RunLoop = Callable[[int, Tensor, Sequence[float], int], None]  # start, gradient, settings, key


def on_team(loop: Callable[..., None], vectors: Sequence[Tensor]) -> RunLoop:
    """Return what runs a loop on a part of the vectors.

    Args:
        loop: compiled with the signature `LOOP`; an element's result depends on its place alone, not on the part.
        vectors: four, float32 (d,), in memory that stays where it is.
    """
    team = openmp()
    arrays = [vector.numpy() for vector in vectors]
    bases = [array.ctypes.data for array in arrays]
    settings: Float32Array = np.zeros(_SETTINGS, np.float32)
    words = np.zeros(4, np.uint32)  # first random word, high word of the key, and the count in two
    addresses = np.zeros(_VECTORS + 2, np.uint64)
    addresses[_VECTORS:] = settings.ctypes.data, words.ctypes.data

    def run(start: int, grad: Tensor, values: Sequence[float], key: int) -> None:
        count = grad.numel()
        low, high = split_key(key)
        first = (start + low) & 0xFFFFFFFF
        for number, value in enumerate(values):
            settings[number] = value
        threads = min(torch.get_num_threads(), count // PART)
        if team is None or threads < 2:
            parts = [array[start : start + count] for array in arrays]
            loop(*parts, grad.numpy(), settings, np.uint32(first), np.uint32(high))
            return
        words[:] = first, high, count & 0xFFFFFFFF, count >> 32
        addresses[: _VECTORS - 1] = [base + 4 * start for base in bases]
        addresses[_VECTORS - 1] = grad.data_ptr()
        team.run(_compile_entry(loop).address, addresses.ctypes.data, threads)

    return run


@cache
def _compile_entry(loop: Callable[..., None]) -> Any:
    """Compile what each thread of a team runs: its part of the loop over the vectors at the given addresses."""
    team = openmp()
    assert team is not None
    thread_number, thread_count = team.thread_functions

    @numba.cfunc(_ENTRY)  # type: ignore[untyped-decorator]
    def entry(addresses: Any) -> None:
        words = numba.carray(addresses[6], 4).view(np.uint32)
        count = np.int64(words[2]) + (np.int64(words[3]) << np.int64(32))
        start = count * thread_number() // thread_count()
        end = count * (thread_number() + 1) // thread_count()
        loop(
            numba.carray(addresses[0], count)[start:end],
            numba.carray(addresses[1], count)[start:end],
            numba.carray(addresses[2], count)[start:end],
            numba.carray(addresses[3], count)[start:end],
            numba.carray(addresses[4], count)[start:end],
            numba.carray(addresses[5], _SETTINGS),
            np.uint32(words[0] + np.uint32(start)),
            words[1],
        )

    return entry
