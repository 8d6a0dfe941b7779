"""The masked step for CPUs: one loop, which Numba compiles and LLVM vectorizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import types
from torch import Tensor

from fedmrn_app.kernels.compiled import FLOATS, compile_loop
from fedmrn_app.kernels.counter_rng import first_word
from fedmrn_app.kernels.masking import MaskedStep, MaskKind, Vectors
from fedmrn_app.kernels.thresholds import uniform

_SIGNATURE = types.void(*[FLOATS] * 5, types.float32, types.float32, types.uint32, types.uint32)


def cpu_step(kind: MaskKind, vectors: Vectors) -> MaskedStep:
    """Return the step for one kind of masks on given vectors."""
    loop = _compile_loop(kind)
    arrays = [vector.numpy() for vector in (vectors.u, vectors.n, vectors.w, vectors.out)]

    def step(start: int, grad: Tensor, lr: float, progress: float, key: int) -> None:
        parts = [array[start : start + grad.numel()] for array in arrays]
        low, high = first_word(key, start)
        loop(*parts, grad.numpy(), np.float32(lr), np.float32(progress), np.uint32(low), np.uint32(high))

    return step


@cache
def _compile_loop(kind: MaskKind) -> Callable[..., None]:
    signed, deterministic = kind.signed, kind.deterministic
    f32, half = np.float32, np.float32(0.5)

    def loop(u: Any, n: Any, w: Any, out: Any, grad: Any, lr: Any, progress: Any, low: Any, high: Any) -> None:
        for i in range(u.size):
            v = uniform(i, low, high)
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
            lower = -limit if signed else (ni if ni < 0 else f32(0))
            upper = limit if signed else (ni if ni > 0 else f32(0))
            clipped = ui if ui > lower else lower
            clipped = clipped if clipped < upper else upper
            dropped = -ni if signed else f32(0)
            masked = ni if v < p * progress else dropped
            out[i] = w[i] + (masked if v < progress else clipped)

    return compile_loop(_SIGNATURE, loop)
