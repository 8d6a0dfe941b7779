"""The masked step for CPUs: one loop that Numba compiles and LLVM vectorises, on PyTorch's own threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from torch import Tensor

from fedmrn_app.kernels.compiled import compile_loop
from fedmrn_app.kernels.masking import MaskedStep, MaskKind, Vectors
from fedmrn_app.kernels.team import LOOP, on_team
from fedmrn_app.kernels.thresholds import uniform


def cpu_step(kind: MaskKind, vectors: Vectors) -> MaskedStep:
    """Return the step for a kind of masking on given vectors."""
    run = on_team(_compile_loop(kind), (vectors.u, vectors.n, vectors.w, vectors.out))

    def step(start: int, grad: Tensor, lr: float, progress: float, key: int) -> None:
        run(start, grad, (lr, progress), key)

    return step


@cache
def _compile_loop(kind: MaskKind) -> Callable[..., None]:
    signed, deterministic = kind.signed, kind.deterministic
    f32, half = np.float32, np.float32(0.5)

    def loop(u: Any, n: Any, w: Any, out: Any, grad: Any, settings: Any, start: Any, high: Any) -> None:
        lr, progress = settings[0], settings[1]
        for i in range(u.size):
            v = uniform(i, start, high)
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

    return compile_loop(LOOP, loop)
