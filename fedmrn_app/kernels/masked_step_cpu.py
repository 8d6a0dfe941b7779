"""The masked step for CPUs: one loop that Numba compiles and LLVM vectorises."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from fedmrn_app.kernels.masked_step import MaskedStep, Masking
from fedmrn_app.kernels.words import MULTIPLIERS, split_key

PART = 1 << 18  # elements that are worth a thread

_VECTOR = numba.types.Array(numba.float32, 1, "C")
_SIGNATURE = numba.void(  # compiled when made, so that no step of a run is the slow one
    *[_VECTOR] * 5, numba.float32, numba.float32, numba.uint32, numba.uint32
)


def in_parts(count: int, work: Callable[[int, int], None]) -> None:
    """Call `work(start, end)` for all elements of a vector, on as many threads as PyTorch uses if it is long."""
    threads = min(torch.get_num_threads(), count // PART)
    if threads < 2:
        work(0, count)
        return
    bounds = [count * part // threads for part in range(threads + 1)]
    list(_pool(threads).map(work, bounds[:-1], bounds[1:]))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, initializer=torch.set_flush_denormal, initargs=(True,))  # as in training


@cache
def cpu_step(masking: Masking) -> MaskedStep:
    """Compile the step for a kind of masking."""
    loop = _compile(masking)

    def step(
        u: Tensor, n: Tensor, w: Tensor, grad: Tensor, out: Tensor, lr: float, progress: float, key: int, first: int
    ) -> None:
        low, high = split_key(key)
        vectors = [tensor.numpy() for tensor in (u, n, w, grad, out)]

        def work(start: int, end: int) -> None:
            parts = (vector[start:end] for vector in vectors)
            word = np.uint32((first + start + low) & 0xFFFFFFFF)
            loop(*parts, np.float32(lr), np.float32(progress), word, np.uint32(high))

        in_parts(u.numel(), work)

    return step


def _compile(masking: Masking) -> Callable[..., None]:
    signed, deterministic = masking.signed, masking.deterministic
    multiply_first, multiply_second = (np.uint32(m) for m in MULTIPLIERS)
    u32, f32 = np.uint32, np.float32
    half, unit = np.float32(0.5), np.float32(2.0**-24)

    # fastmath would let the compiler fuse and reorder; without it the results are those of the plain operations
    @numba.njit([_SIGNATURE], nogil=True, error_model="numpy")
    def loop(u: Any, n: Any, w: Any, grad: Any, out: Any, lr: Any, progress: Any, start: Any, high: Any) -> None:
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
