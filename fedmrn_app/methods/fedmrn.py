"""FedMRN and FedMRNS: the update is a learned 1-bit mask over seeded noise (Algorithm 1).

Li et al. 2024, "Masked Random Noise for Communication-Efficient Federated Learning", section 3.

The client knows the noise `n = G(seed)` and learns an update `u` by progressive stochastic masking (PSM). At local step
t = 1..S the loss is evaluated at `w + n * m` where an element is masked, with probability t / S, and at `w + clip(u)`
elsewhere; its gradient goes straight through to `u`. After S steps one more draw of `m` gives the masks that are sent.
The server regenerates `n` from the seed it gave and multiplies.

Binary masks (FedMRN) keep or drop the noise, signed ones (FedMRNS) keep or turn it over.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedmrn_app.errors import ConfigError
from fedmrn_app.learning.flat import FlatModel, to_tensor
from fedmrn_app.learning.sgd import local_sgd, train_update
from fedmrn_app.methods import ClientUpdate, Common, LocalTask, Method
from fedmrn_app.noise import Float32Array
from fedmrn_app.shapes import Shapes, sizes_of
from fedmrn_app.wire.bits import packed_size
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.masks import Evidence, pack_mask, unpack_mask

# How masks are learned (sections 5.3, 5.4): stochastic (SM) or deterministic masking (DM), progressive (PM) or not.
Masking = Literal[
    "psm",  # SM and PM: the paper's method
    "sm",  # without PM
    "pm",  # without SM: DM and PM
    "dm",  # without both
    "post_sm",  # "FedAvg w. SM": plain local SGD, then one SM draw
]
MASKINGS: tuple[Masking, ...] = get_args(Masking)


@dataclass(frozen=True)
class FedMRN(Method):
    """Binary masks. Body: a mask, 1 where the noise is kept."""

    name = "fedmrn"
    code = 2
    signed: ClassVar[bool] = False

    masking: Masking = "psm"

    def __post_init__(self) -> None:
        if self.masking not in MASKINGS:
            raise ConfigError(f"strategy.masking={self.masking}: must be one of {', '.join(MASKINGS)}")

    def train(self, model: FlatModel, task: LocalTask) -> ClientUpdate:
        """Learn the masks and pack them."""
        start = time.perf_counter()
        noise = self.noise(task.seed, model.weights.numel())
        n = to_tensor(noise).to(model.device)
        generator = task.generator(model.device)
        if self.masking == "post_sm":
            u, loss = train_update(model, task.batches, task.lr, task.precision, task.weight_decay)
        else:
            u, loss = self._learn(model, n, task, generator)
        trained = time.perf_counter()
        mask = self.draw_mask(u, n, generator).cpu().numpy()
        body = pack_mask(mask, partial(self.evidence, noise, task.common), self.coder)
        return ClientUpdate(body, loss, trained - start, time.perf_counter() - trained)

    def decode(self, body: Body, seed: int, common: Common) -> Float32Array:
        """Return `G(seed) * m`."""
        update = self.noise(seed, common.count)
        bits = unpack_mask(body, common.count, partial(self.evidence, update, common)).view(np.int8)
        update *= 2 * bits - 1 if self.signed else bits
        return update

    def evidence(self, n: Float32Array, common: Common) -> Evidence:
        """Small noise is kept more often than large one, and rather if it points where the weight has gone so far."""
        size = np.abs(n)
        size *= np.float32(1 / (self.noise.largest * self.noise.alpha))
        np.minimum(size, 1, out=size)
        sign = np.copysign(np.float32(1), n)
        return Evidence(common.shapes, size, sign, common.trend * sign)

    def max_body_bytes(self, shapes: Shapes) -> int:
        """One bit a weight."""
        return packed_size(sum(sizes_of(shapes)))

    def _learn(self, model: FlatModel, n: Tensor, task: LocalTask, generator: torch.Generator) -> tuple[Tensor, float]:
        """Train `u` of shape (d,) from zero; return it with the mean loss."""
        steps = len(task.batches)
        w = model.weights.clone()
        u = torch.zeros_like(w)

        def mask_weights(step: int) -> None:
            torch.add(w, self.mask_update(u, n, step / steps, generator), out=model.weights)

        loss = local_sgd(
            model,
            task.batches,
            task.lr,
            precision=task.precision,
            weight_decay=task.weight_decay,
            variable=u,
            before_step=mask_weights,
        )
        return u, loss

    def mask_update(self, u: Tensor, n: Tensor, progress: float, generator: torch.Generator) -> Tensor:
        """What stands for `u` in the forward pass at `progress` = t / S (Eq. 10), of shape (d,)."""
        masked = mask_noise(n, self.draw_mask(u, n, generator), self.signed)
        if self.masking not in ("psm", "pm"):
            return masked
        chosen = torch.rand(n.shape, generator=generator, device=n.device) < progress
        return torch.where(chosen, masked, clip_update(u, n, self.signed))

    def draw_mask(self, u: Tensor, n: Tensor, generator: torch.Generator) -> Tensor:
        """Draw masks, bool (d,), stochastically or not: True where the noise is kept."""
        if self.masking in ("pm", "dm"):
            return torch.sign(u) == torch.sign(n)
        random = torch.rand(n.shape, generator=generator, device=n.device)
        return random < mask_probability(u, n, self.signed)


@dataclass(frozen=True)
class FedMRNS(FedMRN):
    """Signed masks. Body: a mask, 1 where the noise is kept, 0 where its sign is turned."""

    name = "fedmrns"
    code = 3
    signed: ClassVar[bool] = True


def mask_probability(u: Tensor, n: Tensor, signed: bool) -> Tensor:
    """Probability that an element's noise is kept: clip(u / n, 0, 1) or clip((u + n) / 2n, 0, 1) (Eqs. 6 and 7)."""
    ratio = u / n
    return (0.5 * ratio + 0.5 if signed else ratio).clamp_(0, 1)


def mask_noise(n: Tensor, kept: Tensor, signed: bool) -> Tensor:
    """Masked noise `n * m`, with m in {0, 1} or, signed, {-1, 1}; `kept` is bool (d,)."""
    return torch.where(kept, n, -n) if signed else n * kept


def clip_update(u: Tensor, n: Tensor, signed: bool) -> Tensor:
    """`u` clipped between 0 and n or, signed, between -|n| and |n|: what masked noise can express (below Eq. 10)."""
    if signed:
        limit = n.abs()
        return u.clamp(-limit, limit)
    return u.clamp(n.clamp(max=0), n.clamp(min=0))
