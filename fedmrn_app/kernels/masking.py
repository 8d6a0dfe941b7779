"""A local step of masked training: the gradient step on `u` and the weights of the next forward pass.

For each element, with the random number v in [0, 1) of its index and the step's key (Li et al. 2024, Eqs. 6, 7, 10):

    u   <- u - lr * gradient
    p    = clip(u / n, 0, 1) for binary masks, clip((u + n) / 2n, 0, 1) for signed masks,
           and for deterministic masks 1 where u and n have the same sign, else 0
    out <- w + n                          if v < p * progress
           w + 0, or w - n if signed      if p * progress <= v < progress
           w + clip(u)                    if v >= progress, clipped to [0, n], or to [-|n|, |n|] if signed

One random number makes both choices, because v / progress is uniform on [0, 1) given v < progress.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmrn_app.kernels.counter_rng import random_words, unit_floats


@dataclass(frozen=True)
class MaskKind:
    """The kind of masks: signed or binary, deterministic or stochastic."""

    signed: bool
    deterministic: bool = False


@dataclass(frozen=True)
class Vectors:
    """The vectors of a step, all float32 (d,) on one device; a step changes `u` and `out`.

    Attributes:
        u: the update that is learned.
        n: the noise, never zero.
        w: the weights that the server sent.
        out: the weights of the next forward pass.
    """

    u: Tensor
    n: Tensor
    w: Tensor
    out: Tensor


# start, gradient (k,), lr, progress, key: steps on elements start to start + k, which the gradient belongs to
MaskedStep = Callable[[int, Tensor, float, float, int], None]


def plain_step(kind: MaskKind, vectors: Vectors) -> MaskedStep:
    """Return the step by PyTorch's elementwise operations, which defines what the kernels compute."""

    def step(start: int, grad: Tensor, lr: float, progress: float, key: int) -> None:
        part = slice(start, start + grad.numel())
        u, n = vectors.u[part], vectors.n[part]
        u.sub_(grad * torch.tensor(lr, dtype=torch.float32))
        v = unit_floats(random_words(key, u.numel(), start, u.device))
        q = torch.tensor(progress, dtype=torch.float32, device=u.device)
        p = mask_probability(u, n, kind)
        masked = torch.where(v < p * q, n, -n if kind.signed else torch.zeros_like(n))
        chosen = torch.where(v < q, masked, clip_update(u, n, kind.signed))
        torch.add(vectors.w[part], chosen, out=vectors.out[part])

    return step


def mask_probability(u: Tensor, n: Tensor, kind: MaskKind) -> Tensor:
    """Return the probability that an element's noise is kept (Eqs. 6 and 7); 0 or 1 for deterministic masks."""
    if kind.deterministic:
        return (torch.sign(u) == torch.sign(n)).float()
    ratio = u / n
    return (0.5 * ratio + 0.5 if kind.signed else ratio).clamp_(0, 1)


def clip_update(u: Tensor, n: Tensor, signed: bool) -> Tensor:
    """Return `u` clipped to the values that masked noise can have: [0, n], or [-|n|, |n|] if signed (below Eq. 10)."""
    if signed:
        limit = n.abs()
        return u.clamp(-limit, limit)
    return u.clamp(n.clamp(max=0), n.clamp(min=0))
