"""The masked step for CPUs: one loop that Numba compiles and LLVM vectorises, on PyTorch's own threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from numba import types
from torch import Tensor

from fedmrn_app.kernels.masking import MaskedStep, MaskKind, Vectors
from fedmrn_app.kernels.openmp import openmp
from fedmrn_app.kernels.words import MULTIPLIERS, split_key

PART = 1 << 16  # elements that are worth a thread

_SIGNATURE = types.void(
    *[types.Array(types.float32, 1, "C")] * 5, types.float32, types.float32, types.uint32, types.uint32
)
_ENTRY_SIGNATURE = types.void(types.CPointer(types.CPointer(types.float32)))


def cpu_step(kind: MaskKind, vectors: Vectors) -> MaskedStep:
    """Return the step for a kind of masking on given vectors."""
    loop = _compile_loop(kind)
    team = openmp()
    u, n, w, out = (vector.numpy() for vector in (vectors.u, vectors.n, vectors.w, vectors.out))
    bases = [vector.ctypes.data for vector in (u, n, w, out)]
    numbers = np.zeros(6, np.float32)  # what the threads of a team are told, besides addresses
    words = numbers.view(np.uint32)
    addresses = np.zeros(6, np.uint64)
    addresses[5] = numbers.ctypes.data

    def step(start: int, grad: Tensor, lr: float, progress: float, key: int) -> None:
        count = grad.numel()
        low, high = split_key(key)
        first = (start + low) & 0xFFFFFFFF
        threads = min(torch.get_num_threads(), count // PART)
        if team is None or threads < 2:
            part = slice(start, start + count)
            loop(u[part], n[part], w[part], out[part], grad.numpy(), lr, progress, np.uint32(first), np.uint32(high))
            return
        numbers[:2] = lr, progress
        words[2:] = first, high, count & 0xFFFFFFFF, count >> 32
        addresses[:4] = [base + 4 * start for base in bases]
        addresses[4] = grad.data_ptr()
        team.run(_compile_entry(kind).address, addresses.ctypes.data, threads)

    return step


@cache
def _compile_loop(kind: MaskKind) -> Callable[..., None]:
    signed, deterministic = kind.signed, kind.deterministic
    multiply_first, multiply_second = (np.uint32(m) for m in MULTIPLIERS)
    u32, f32 = np.uint32, np.float32
    half, unit = np.float32(0.5), np.float32(2.0**-24)

    # fastmath would let the compiler fuse and reorder; without it the results are those of the plain operations
    @numba.njit([_SIGNATURE], nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
    def loop(u: Any, n: Any, w: Any, out: Any, grad: Any, lr: Any, progress: Any, start: Any, high: Any) -> None:
        for i in range(u.size):
            x = u32(u32(i) + start)
            x = u32((x ^ (x >> u32(16))) * multiply_first) ^ high
            x = u32((x ^ (x >> u32(15))) * multiply_second)
            v = f32(np.int32((x ^ (x >> u32(16))) >> u32(8))) * unit
            ni = n[i]
            ui = u[i] - lr * grad[i]
            u[i] = ui
            if deterministic:
                p = f32((ui > 0 and ni > 0) or (ui < 0 and ni < 0))
            else:
                p = ui / ni
                if signed:
                    p = half * p + half
                p = p if p > 0 else f32(0)
                p = p if p < 1 else f32(1)
            limit = abs(ni)
            low = -limit if signed else (ni if ni < 0 else f32(0))
            high_limit = limit if signed else (ni if ni > 0 else f32(0))
            clipped = ui if ui > low else low
            clipped = clipped if clipped < high_limit else high_limit
            dropped = -ni if signed else f32(0)
            masked = ni if v < p * progress else dropped
            out[i] = w[i] + (masked if v < progress else clipped)

    compiled: Callable[..., None] = loop
    return compiled


@cache
def _compile_entry(kind: MaskKind) -> Any:
    """Compile what each thread of a team runs: its part of the loop over the vectors at the given addresses."""
    loop = _compile_loop(kind)
    team = openmp()
    assert team is not None
    thread_number, thread_count = team.thread_functions

    @numba.cfunc(_ENTRY_SIGNATURE)  # type: ignore[untyped-decorator]
    def entry(addresses: Any) -> None:
        numbers = numba.carray(addresses[5], 6)
        words = numbers.view(np.uint32)
        count = np.int64(words[4]) + (np.int64(words[5]) << np.int64(32))
        start = count * thread_number() // thread_count()
        end = count * (thread_number() + 1) // thread_count()
        loop(
            numba.carray(addresses[0], count)[start:end],
            numba.carray(addresses[1], count)[start:end],
            numba.carray(addresses[2], count)[start:end],
            numba.carray(addresses[3], count)[start:end],
            numba.carray(addresses[4], count)[start:end],
            numbers[0],
            numbers[1],
            np.uint32(words[2] + np.uint32(start)),
            words[3],
        )

    return entry
