"""The step of trained scores for CPUs: one loop that Numba compiles and LLVM vectorises, on PyTorch's own threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from torch import Tensor

from fedmrn_app.kernels import scoring
from fedmrn_app.kernels.compiled import compile_loop
from fedmrn_app.kernels.scoring import Scores, ScoreStep
from fedmrn_app.kernels.team import LOOP, on_team
from fedmrn_app.kernels.thresholds import uniform

_T_PER_S, _LARGEST, _ROUND = (np.float32(c) for c in (scoring.T_PER_S, scoring.LARGEST, scoring.ROUND))
_C5, _C4, _C3, _C2, _C1, _ONE = (np.float32(c) for c in scoring.POLYNOMIAL)
_BITS = np.int32(scoring.FRACTION_BITS)
_BIAS = np.int32(scoring.EXPONENT_BIAS << scoring.FRACTION_BITS)


def cpu_score_step(vectors: Scores) -> ScoreStep:
    """Return the step on given vectors."""
    run = on_team(_compile_loop(), (vectors.scores, vectors.probabilities, vectors.frozen, vectors.out))

    def step(start: int, grad: Tensor, lr: float, key: int) -> None:
        run(start, grad, (lr,), key)

    return step


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _sigmoid(s: Any) -> Any:
    """The sigmoid of one number, built into the loop."""
    t = s * _T_PER_S
    t = t if t < _LARGEST else _LARGEST
    t = t if t > -_LARGEST else -_LARGEST
    shifted = t + _ROUND
    f = t - (shifted - _ROUND)
    y = ((((_C5 * f + _C4) * f + _C3) * f + _C2) * f + _C1) * f + _ONE
    power = np.int32(np.int32(np.float32(shifted).view(np.int32) << _BITS) + _BIAS).view(np.float32)
    return _ONE / (y * power + _ONE)


@cache
def _compile_loop() -> Callable[..., None]:
    def loop(s: Any, p: Any, frozen: Any, out: Any, grad: Any, settings: Any, start: Any, high: Any) -> None:
        lr = settings[0]
        for i in range(s.size):
            v = uniform(i, start, high)
            weight, before = frozen[i], p[i]
            score = s[i] - grad[i] * weight * (before * (_ONE - before)) * lr
            s[i] = score
            probability = _sigmoid(score)
            p[i] = probability
            out[i] = weight if v < probability else np.float32(0)

    return compile_loop(LOOP, loop)
