"""The step of trained scores for CPUs: one loop that Numba compiles and LLVM vectorises, on PyTorch's own threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from numba import types
from torch import Tensor

from fedmrn_app.kernels import scoring
from fedmrn_app.kernels.masked_step_cpu import PART
from fedmrn_app.kernels.openmp import openmp
from fedmrn_app.kernels.scoring import Scores, ScoreStep
from fedmrn_app.kernels.words import MULTIPLIERS, split_key

_SIGNATURE = types.void(*[types.Array(types.float32, 1, "C")] * 5, types.float32, types.uint32, types.uint32)
_ENTRY_SIGNATURE = types.void(types.CPointer(types.CPointer(types.float32)))


def cpu_score_step(vectors: Scores) -> ScoreStep:
    """Return the step on given vectors."""
    loop = _compile_loop()
    team = openmp()
    arrays = [vector.numpy() for vector in (vectors.scores, vectors.probabilities, vectors.frozen, vectors.out)]
    bases = [array.ctypes.data for array in arrays]
    numbers = np.zeros(5, np.float32)  # what the threads of a team are told, besides addresses
    words = numbers.view(np.uint32)
    addresses = np.zeros(6, np.uint64)
    addresses[5] = numbers.ctypes.data

    def step(start: int, grad: Tensor, lr: float, key: int) -> None:
        count = grad.numel()
        low, high = split_key(key)
        first = (start + low) & 0xFFFFFFFF
        threads = min(torch.get_num_threads(), count // PART)
        if team is None or threads < 2:
            parts = [array[start : start + count] for array in arrays]
            loop(*parts, grad.numpy(), lr, np.uint32(first), np.uint32(high))
            return
        numbers[0] = lr
        words[1:] = first, high, count & 0xFFFFFFFF, count >> 32
        addresses[:4] = [base + 4 * start for base in bases]
        addresses[4] = grad.data_ptr()
        team.run(_compile_entry().address, addresses.ctypes.data, threads)

    return step


@cache
def _compile_sigmoid() -> Callable[..., Any]:
    """Compile the sigmoid of one number, to be built into the loop."""
    f32, i32 = np.float32, np.int32
    t_per_s, largest, rounding = (f32(c) for c in (scoring.T_PER_S, scoring.LARGEST, scoring.ROUND))
    c5, c4, c3, c2, c1, one = (f32(c) for c in scoring.POLYNOMIAL)
    bits, bias = i32(scoring.FRACTION_BITS), i32(scoring.EXPONENT_BIAS << scoring.FRACTION_BITS)

    @numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
    def sigmoid(s: Any) -> Any:
        t = s * t_per_s
        t = t if t < largest else largest
        t = t if t > -largest else -largest
        shifted = t + rounding
        f = t - (shifted - rounding)
        y = ((((c5 * f + c4) * f + c3) * f + c2) * f + c1) * f + one
        power = i32(i32(f32(shifted).view(np.int32) << bits) + bias).view(np.float32)
        return one / (y * power + one)

    compiled: Callable[..., Any] = sigmoid
    return compiled


@cache
def _compile_loop() -> Callable[..., None]:
    multiply_first, multiply_second = (np.uint32(m) for m in MULTIPLIERS)
    u32, f32 = np.uint32, np.float32
    unit, one = np.float32(2.0**-24), np.float32(1)
    sigmoid = _compile_sigmoid()

    # fastmath would let the compiler fuse and reorder; without it the results are those of the plain operations
    @numba.njit([_SIGNATURE], nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
    def loop(s: Any, p: Any, frozen: Any, out: Any, grad: Any, lr: Any, start: Any, high: Any) -> None:
        for i in range(s.size):
            x = u32(u32(i) + start)
            x = u32((x ^ (x >> u32(16))) * multiply_first) ^ high
            x = u32((x ^ (x >> u32(15))) * multiply_second)
            v = f32(np.int32((x ^ (x >> u32(16))) >> u32(8))) * unit
            weight, before = frozen[i], p[i]
            score = s[i] - grad[i] * weight * (before * (one - before)) * lr
            s[i] = score
            probability = sigmoid(score)
            p[i] = probability
            out[i] = weight if v < probability else f32(0)

    compiled: Callable[..., None] = loop
    return compiled


@cache
def _compile_entry() -> Any:
    """Compile what each thread of a team runs: its part of the loop over the vectors at the given addresses."""
    loop = _compile_loop()
    team = openmp()
    assert team is not None
    thread_number, thread_count = team.thread_functions

    @numba.cfunc(_ENTRY_SIGNATURE)  # type: ignore[untyped-decorator]
    def entry(addresses: Any) -> None:
        numbers = numba.carray(addresses[5], 5)
        words = numbers.view(np.uint32)
        count = np.int64(words[3]) + (np.int64(words[4]) << np.int64(32))
        start = count * thread_number() // thread_count()
        end = count * (thread_number() + 1) // thread_count()
        loop(
            numba.carray(addresses[0], count)[start:end],
            numba.carray(addresses[1], count)[start:end],
            numba.carray(addresses[2], count)[start:end],
            numba.carray(addresses[3], count)[start:end],
            numba.carray(addresses[4], count)[start:end],
            numbers[0],
            np.uint32(words[1] + np.uint32(start)),
            words[2],
        )

    return entry
