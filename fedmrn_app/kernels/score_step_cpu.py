"""The step of trained scores for CPUs: one loop that Numba compiles and LLVM vectorises, on PyTorch's own threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from torch import Tensor

from fedmrn_app.kernels import scoring
from fedmrn_app.kernels.scoring import Scores, ScoreStep
from fedmrn_app.kernels.team import LOOP, on_team
from fedmrn_app.kernels.thresholds import uniform


def cpu_score_step(vectors: Scores) -> ScoreStep:
    """Return the step on given vectors."""
    run = on_team(_compile_loop(), (vectors.scores, vectors.probabilities, vectors.frozen, vectors.out))

    def step(start: int, grad: Tensor, lr: float, key: int) -> None:
        run(start, grad, (lr,), key)

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
    f32, one = np.float32, np.float32(1)
    sigmoid = _compile_sigmoid()

    # fastmath would let the compiler fuse and reorder; without it the results are those of the plain operations
    @numba.njit([LOOP], nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]
    def loop(s: Any, p: Any, frozen: Any, out: Any, grad: Any, settings: Any, start: Any, high: Any) -> None:
        lr = settings[0]
        for i in range(s.size):
            v = uniform(i, start, high)
            weight, before = frozen[i], p[i]
            score = s[i] - grad[i] * weight * (before * (one - before)) * lr
            s[i] = score
            probability = sigmoid(score)
            p[i] = probability
            out[i] = weight if v < probability else f32(0)

    compiled: Callable[..., None] = loop
    return compiled
