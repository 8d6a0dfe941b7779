"""FedMRN and FedMRNS: the update is a learned 1-bit mask over seeded noise (Algorithm 1).

Li et al. 2024, "Masked Random Noise for Communication-Efficient Federated Learning", section 3.

The client knows the noise `n = G(seed)` and learns an update `u` by progressive stochastic masking (PSM). At local step
t = 1..S the loss is evaluated at `w + n * m` where an element is masked, with probability t / S, and at `w + clip(u)`
elsewhere; its gradient goes straight through to `u`. After S steps one more draw of `m` gives the masks that are sent.
The server regenerates `n` from the seed it gave and multiplies.

The uniforms v of that last draw follow from the server's seed too. The mask has the distribution that it would have
with any others, and both sides know the threshold v n (signed (2 v - 1) n) that `u` is beyond or not, which is what
masks are coded by. So the last draw is no private randomness: a bit tells on which side of a known number `u` is. The
draws in training stay private.

Binary masks (FedMRN) keep or drop the noise, signed ones (FedMRNS) keep or negate it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedmrn_app.errors import ConfigError
from fedmrn_app.kernels.counter_rng import known_key, step_key
from fedmrn_app.kernels.masked_step import masked_step
from fedmrn_app.kernels.masking import MaskKind, Vectors, mask_probability
from fedmrn_app.kernels.thresholds import uniforms
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.learning.flat import FlatModel, to_tensor
from fedmrn_app.methods.mask_decoding import (
    MaskedNoise,
    NoiseBlocks,
    NoiseRows,
    ThresholdSide,
    UniformNoise,
    WholeNoise,
)
from fedmrn_app.methods.method import Codec, LocalTraining, Method, MethodConfig, RunOptions, TrainContext, Trained
from fedmrn_app.methods.randomized_response import RandomizedResponse
from fedmrn_app.methods.rate_control import RateControl
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import Noise
from fedmrn_app.wire.body import CODED, Body, Coder
from fedmrn_app.wire.mask_model import Side, SideInformation
from fedmrn_app.wire.masks import decode_packed, pack_mask
from fedmrn_app.wire.primitives import packed_bits, packed_size

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
class MaskedTraining(LocalTraining):
    """Training whose forward passes see masked noise; `x` is the update `u` that the masks stand for."""

    noise: Noise
    kind: MaskKind
    progressive: bool

    def train(self, model: FlatModel, local: TrainContext) -> Trained:
        """Train `u` of shape (d,) from zero."""
        steps = len(local.batches)
        n = to_tensor(local.known.noise(self.noise, local.seed)).to(model.device)
        w = model.weights.clone()
        u = torch.zeros_like(w)
        step_on = masked_step(self.kind, Vectors(u, n, w, model.weights))

        def mask_weights(step: int, grads: Iterable[tuple[int, Tensor]]) -> None:
            """Subtract the gradients from `u` and mask it for the forward pass of `step`."""
            progress, key = self.progress(step, steps), step_key(local.private_seed, step)
            for start, grad in grads:
                step_on(start, grad, local.lr, progress, key)

        mask_weights(1, [(0, torch.zeros_like(u))])
        loss = local.sgd(model, update=lambda step: mask_weights(step + 1, model.grad_parts()))
        return Trained(u.cpu().numpy(), loss)

    def progress(self, step: int, steps: int) -> float:
        """The share of the elements that are masked at a local step."""
        return step / steps if self.progressive else 1.0


@dataclass(frozen=True)
class NoiseMask(Codec):
    """Body: a mask, 1 where the noise is kept, 0 where it is dropped or, signed, negated."""

    noise: Noise
    kind: MaskKind
    coder: Coder
    flips: RandomizedResponse | None = None

    def encode(self, x: Float32Array, known: SharedContext, seed: int, private_seed: int) -> Body:
        """Draw the mask of the update `x`, with the uniforms that the server knows, and pack it."""
        noise = known.noise(self.noise, seed)
        mask = draw_mask(to_tensor(x), to_tensor(noise), self.kind, known_key(seed)).numpy()
        if self.flips is not None:
            mask = self.flips.apply(mask, private_seed)
        return pack_mask(mask, partial(self.side, noise, known, seed), self.coder)

    def decode(self, body: Body, known: SharedContext, seed: int) -> Float32Array:
        """Return `G(seed) * m`."""
        update = np.full(known.count, -0.0, np.float32)  # to which zeros of either sign can be added
        self.read(body, known, seed).add_to(update, np.float32(1))
        return update

    def read(self, body: Body, known: SharedContext, seed: int) -> MaskedNoise:
        """Return the mask."""
        if body.form != CODED:
            body.must_be_plain()
            scaled = known.scaled(self.noise)
            uniform = scaled.distribution == "uniform"
            plain = UniformNoise(seed, scaled.alpha) if uniform else NoiseBlocks(scaled, seed)
            return MaskedNoise(packed_bits(body.data, known.count), plain, self.kind.signed, self.flips)
        if self._makes_rows:
            noise: NoiseRows = UniformNoise(seed, known.scaled(self.noise).alpha)
            side: Side = self._thresholds(noise, known, seed)
        else:
            vector = known.scaled(self.noise)(seed, known.count)
            noise, side = WholeNoise(vector), self.side(vector, known, seed)
        return MaskedNoise(decode_packed(body.data, side), noise, self.kind.signed, self.flips)

    @property
    def bounded(self) -> bool:
        """A norm is that of the noise at most, which the server's seed and scale make."""
        return True

    @property
    def reading_copies(self) -> float | None:
        """A byte per weight, and the bits of those that wait; where noise is kept whole, one reads at a time."""
        return 0.5 if self._makes_rows else None

    @property
    def _makes_rows(self) -> bool:
        return self.noise.distribution == "uniform" and not self.kind.deterministic

    def side(self, n: Float32Array, known: SharedContext, seed: int) -> Side:
        """What masks are coded by, from the noise `n` (d,): thresholds, or the noise where masks are not drawn."""
        if not self.kind.deterministic:
            return self._thresholds(WholeNoise(n), known, seed)
        sign = np.copysign(np.float32(1), n)
        size = np.minimum(np.abs(n) * self._scale(known), np.float32(1))
        return SideInformation(known.layout, size, sign, known.trend * sign)

    def _thresholds(self, noise: NoiseRows, known: SharedContext, seed: int) -> ThresholdSide:
        scale = self._scale(known)
        return ThresholdSide(known.layout, noise, known_key(seed), scale, self.kind.signed, known.trend)

    def _scale(self, known: SharedContext) -> np.float32:
        return np.float32(1 / (self.noise.largest * known.scaled(self.noise).alpha))

    def largest_norm(self, layout: Layout) -> float:
        """That of the noise itself: signed masks always have it, binary ones where nothing is dropped."""
        norm = self.noise.rms * math.sqrt(layout.count)
        if self.flips is None:
            return norm
        # bits count as (1 - P) / (1 - 2 P) or less where flips are taken out
        return norm * self.flips.gain * (1 if self.kind.signed else 1 - self.flips.probability)

    def max_bytes(self, layout: Layout) -> int:
        """One bit per weight."""
        return packed_size(layout.count)


def draw_mask(u: Tensor, n: Tensor, kind: MaskKind, key: int) -> Tensor:
    """Draw masks, bool (d,), stochastically or not: True where the noise is kept."""
    return to_tensor(uniforms(key, u.numel())) < mask_probability(u, n, kind)


@dataclass(frozen=True)
class FedMRN(MethodConfig):
    """Binary masks. Options: `masking`, how they are learned."""

    name = "fedmrn"
    code = 2
    signed: ClassVar[bool] = False

    masking: Masking = "psm"

    def build(self, run: RunOptions) -> Method:
        """Masked training, or plain SGD before the only draw; masks."""
        kind = MaskKind(self.signed, deterministic=self.masking in ("pm", "dm"))
        if run.bits is not None and kind.deterministic:
            raise ConfigError(
                f"uplink.bits={run.bits:g}: masks by strategy.masking={self.masking} take a bit, however large the "
                "noise; say uplink.bits=null"
            )
        training = MaskedTraining(run.noise, kind, progressive=self.masking in ("psm", "pm"))
        return Method(
            self.name,
            self.code,
            NoiseMask(run.noise, kind, run.coder, run.flips),
            LocalTraining() if self.masking == "post_sm" else training,
            whole_model=run.flips is not None,  # nothing goes beside the mask
            packing=run.downlink,
            flips=run.flips,
            steering=None if run.bits is None else RateControl(run.bits, run.noise.alpha),
        )


@dataclass(frozen=True)
class FedMRNS(FedMRN):
    """Signed masks."""

    name = "fedmrns"
    code = 3
    signed: ClassVar[bool] = True
