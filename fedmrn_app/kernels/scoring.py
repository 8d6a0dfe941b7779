"""A local step of trained scores in one pass: the gradient step on the scores and the weights of the next forward pass.

For each element, with the random number v in [0, 1) of its index and the step's key (Isik et al. 2023, Algorithm 2):

    s   <- s - lr * gradient * frozen * p (1 - p)    where p = sigmoid(s)
    out <- frozen if v < sigmoid(s), else 0

The sigmoid is made of correctly rounded operations alone, so that every form of the step gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedmrn_app.kernels.counter_rng import random_words, unit_floats

# exp(-s) = 2^t = 2^k 2^f with k the integer next to t = -s / log 2; the polynomial is 2^f's, within 1e-7 of it
T_PER_S = float(np.float32(-1 / math.log(2)))
LARGEST = 126.0  # of |t|, where 2^t and 2^-t are still normal numbers
POLYNOMIAL = [float(np.float32(c)) for c in (0.00132647273, 0.00967151299, 0.0555073358, 0.240222424, 0.693147004, 1)]
ROUND = 1.5 * 2.0**23  # added to t it leaves k in the lowest bits
EXPONENT_BIAS, FRACTION_BITS = 127, 23  # of float32


@dataclass(frozen=True)
class Scores:
    """What a step works on, all float32 (d,) on one device: all but `frozen` change.

    Attributes:
        scores: s.
        probabilities: p, sigmoid of the scores as the last step left them; of a step with lr = 0 any finite numbers.
        frozen: the weights of the random network.
        out: the weights of the next forward pass.
    """

    scores: Tensor
    probabilities: Tensor
    frozen: Tensor
    out: Tensor


# start, gradient (k,), lr, key: the step on elements start to start + k, whose gradient is given
ScoreStep = Callable[[int, Tensor, float, int], None]


def plain_score_step(vectors: Scores) -> ScoreStep:
    """The step by PyTorch's elementwise operations, which defines what the kernels compute."""

    def step(start: int, grad: Tensor, lr: float, key: int) -> None:
        part = slice(start, start + grad.numel())
        s, p, frozen = vectors.scores[part], vectors.probabilities[part], vectors.frozen[part]
        s.sub_(grad * frozen * (p * (1 - p)) * torch.tensor(lr, dtype=torch.float32))
        p.copy_(sigmoid(s))
        v = unit_floats(random_words(key, s.numel(), start, s.device))
        vectors.out[part] = torch.where(v < p, frozen, torch.zeros_like(frozen))

    return step


def sigmoid(s: Tensor) -> Tensor:
    """1 / (1 + exp(-s)), float32 (d,), within 2e-7; that of what is not a number is almost 0."""
    t = s * T_PER_S
    t = torch.where(t < LARGEST, t, LARGEST)
    t = torch.where(t > -LARGEST, t, -LARGEST)
    shifted = t + ROUND
    f = t - (shifted - ROUND)
    y = torch.full_like(f, POLYNOMIAL[0])
    for coefficient in POLYNOMIAL[1:]:
        y = y * f + coefficient
    power = ((shifted.view(torch.int32) << FRACTION_BITS) + (EXPONENT_BIAS << FRACTION_BITS)).view(torch.float32)
    return 1 / (y * power + 1)
