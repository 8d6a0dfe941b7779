"""A local step of trained scores: the gradient step on the scores and the weights of the next forward pass.

For each element, with the random number v in [0, 1) of its index and the step's key (Isik et al. 2023, Algorithm 2):

    s   <- s - lr * gradient * frozen * p (1 - p)    where p = sigmoid(s)
    out <- frozen if v < sigmoid(s), else 0

The sigmoid consists of correctly rounded operations only, so that all machines and devices compute the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmrn_app.kernels.counter_rng import random_words, unit_floats

# exp(-s) = 2^t = 2^k 2^f, where k is the integer nearest to t = -s / log 2; the polynomial is 2^f within 1e-7
_T_PER_S = float(np.float32(-1 / math.log(2)))
_MAX_T = 126.0  # 2^t and 2^-t are normal numbers up to this |t|
_POLYNOMIAL = [float(np.float32(c)) for c in (0.00132647273, 0.00967151299, 0.0555073358, 0.240222424, 0.693147004, 1)]
_ROUND = 1.5 * 2.0**23  # the sum of t and this number has k in its lowest bits
_EXPONENT_BIAS, _FRACTION_BITS = 127, 23  # of float32


@dataclass(frozen=True)
class Scores:
    """The vectors of a step, all float32 (d,) on one device; a step changes all of them except `frozen`.

    Attributes:
        scores: s.
        probabilities: p, the sigmoid of the scores after the last step; any finite numbers for a step with lr = 0.
        frozen: the weights of the random network.
        out: the weights of the next forward pass.
    """

    scores: Tensor
    probabilities: Tensor
    frozen: Tensor
    out: Tensor


# start, gradient (k,), lr, key: steps on elements start to start + k, which the gradient belongs to
ScoreStep = Callable[[int, Tensor, float, int], None]


def score_step(vectors: Scores) -> ScoreStep:
    """Return the step on given vectors."""

    def step(start: int, grad: Tensor, lr: float, key: int) -> None:
        part = slice(start, start + grad.numel())
        s, p, frozen = vectors.scores[part], vectors.probabilities[part], vectors.frozen[part]
        s.sub_(grad * frozen * (p * (1 - p)) * torch.tensor(lr, dtype=torch.float32))
        p.copy_(sigmoid(s))
        v = unit_floats(random_words(key, s.numel(), start, s.device))
        vectors.out[part] = torch.where(v < p, frozen, torch.zeros_like(frozen))

    return step


def sigmoid(s: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-s)), float32 (d,), within 2e-7; the sigmoid of NaN is almost 0."""
    t = s * _T_PER_S
    t = torch.where(t < _MAX_T, t, _MAX_T)
    t = torch.where(t > -_MAX_T, t, -_MAX_T)
    shifted = t + _ROUND
    f = t - (shifted - _ROUND)
    y = torch.full_like(f, _POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        y = y * f + coefficient
    power = ((shifted.view(torch.int32) << _FRACTION_BITS) + (_EXPONENT_BIAS << _FRACTION_BITS)).view(torch.float32)
    return 1 / (y * power + 1)
