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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedmrn_app.errors import ConfigError
from fedmrn_app.kernels.masked_step import MaskKind, Vectors, mask_probability, masked_step
from fedmrn_app.kernels.words import random_words, step_key, unit_floats
from fedmrn_app.learning.flat import FlatModel, to_tensor
from fedmrn_app.methods import ClientUpdate, Common, LocalTask, Method
from fedmrn_app.noise import Float32Array
from fedmrn_app.shapes import Shapes, sizes_of
from fedmrn_app.wire.bits import packed_size
from fedmrn_app.wire.body import CODED, Body
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
        if self.masking == "post_sm":
            u, loss = task.train_update(model)
        else:
            u, loss = self._learn(model, n, task)
        trained = time.perf_counter()
        mask = self.draw_mask(u, n, step_key(task.private_seed, 0)).cpu().numpy()
        body = pack_mask(mask, partial(self.evidence, noise, task.common), self.coder)
        return ClientUpdate(body, loss, trained - start, time.perf_counter() - trained)

    def decode(self, body: Body, seed: int, common: Common) -> Float32Array:
        """Return `G(seed) * m`."""
        update = np.empty(common.count, np.float32)
        for part, masked in self._masked_noise(body, seed, common):
            update[part] = masked
        return update

    def add(self, body: Body, seed: int, common: Common, share: np.float32, total: Float32Array) -> None:
        """Add `share * G(seed) * m`."""
        for part, masked in self._masked_noise(body, seed, common):
            masked *= share
            total[part] += masked

    def _masked_noise(self, body: Body, seed: int, common: Common) -> Iterator[tuple[slice, Float32Array]]:
        """Yield `G(seed) * m` piece by piece; nothing before the whole body is checked."""
        pieces: Iterable[tuple[int, Float32Array]] = self.noise.blocks(seed, common.count)
        if body.coder == CODED:  # the evidence takes the whole noise, which is not made twice
            whole = self.noise(seed, common.count)
            pieces = [(0, whole)]
        bits = unpack_mask(body, common.count, lambda: self.evidence(whole, common))
        for start, noise in pieces:
            part = slice(start, start + noise.size)
            kept = bits[part].view(np.int8)
            noise *= 2 * kept - 1 if self.signed else kept
            yield part, noise

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

    @property
    def kind(self) -> MaskKind:
        """How an update becomes masked noise."""
        return MaskKind(self.signed, deterministic=self.masking in ("pm", "dm"))

    def progress(self, step: int, steps: int) -> float:
        """The share of the elements that are masked at a local step."""
        return step / steps if self.masking in ("psm", "pm") else 1.0

    def _learn(self, model: FlatModel, n: Tensor, task: LocalTask) -> tuple[Tensor, float]:
        """Train `u` of shape (d,) from zero; return it with the mean loss."""
        steps = len(task.batches)
        w = model.weights.clone()
        u = torch.zeros_like(w)
        step_on = masked_step(self.kind, Vectors(u, n, w, model.weights))

        def mask_weights(step: int, grads: Iterable[tuple[int, Tensor]]) -> None:
            """Subtract the gradients from `u` and mask it for the forward pass of `step`."""
            progress, key = self.progress(step, steps), step_key(task.private_seed, step)
            for start, grad in grads:
                step_on(start, grad, task.lr, progress, key)

        mask_weights(1, [(0, torch.zeros_like(u))])
        loss = task.sgd(model, update=lambda step: mask_weights(step + 1, model.grad_parts()))
        return u, loss

    def draw_mask(self, u: Tensor, n: Tensor, key: int) -> Tensor:
        """Draw masks, bool (d,), stochastically or not: True where the noise is kept."""
        return unit_floats(random_words(key, u.numel(), device=u.device)) < mask_probability(u, n, self.kind)


@dataclass(frozen=True)
class FedMRNS(FedMRN):
    """Signed masks. Body: a mask, 1 where the noise is kept, 0 where its sign is turned."""

    name = "fedmrns"
    code = 3
    signed: ClassVar[bool] = True
