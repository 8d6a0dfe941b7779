"""FedMRN and FedMRNS: the update is a learned 1-bit mask of seeded noise.

Li et al. 2024, "Masked Random Noise for Communication-Efficient Federated Learning", section 3 and Algorithm 1.

The client generates the noise `n = G(seed)` and learns an update `u` by progressive stochastic masking (PSM). At local
step t = 1..S an element is masked with probability t / S. The loss is evaluated at `w + n * m` for masked elements and
at `w + clip(u)` for the others, and its gradient passes straight through to `u`. After S steps the client draws the
mask `m` once more and sends it. The server generates `n` from the same seed and adds the mean of `n * m` to `w`.

- Binary masks (FedMRN) keep or drop the noise, and m = 1 with probability clip(u / n, 0, 1) (Equation 6).
- Signed masks (FedMRNS) keep or negate it, and m = 1 with probability clip((u + n) / 2n, 0, 1) (Equation 7).

The uniforms v of the last draw follow from the server's seed. The mask has the same distribution as with any other
uniforms, and both sides know the threshold v n, or (2 v - 1) n for signed masks, which `u` exceeds or not. Masks are
coded with that side information. The last draw is therefore not private randomness: a bit tells on which side of a
known number `u` lies. The draws during training are not private either, because their seed follows from the run's.

With `low_rank` a coarse estimate of `u` is sent beside the mask where that takes fewer bytes, see `mask_estimate.py`.
It makes the bits more predictable and changes none of them. It tells the server more about `u` than the mask does.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmrn_app.kernels.counter_rng import known_key, step_key
from fedmrn_app.kernels.masked_step import masked_step
from fedmrn_app.kernels.masking import MaskKind, Vectors, mask_probability
from fedmrn_app.kernels.thresholds import Thresholds, draw, uniforms
from fedmrn_app.layout import Float32Array, Layout, blocks
from fedmrn_app.learning.flat import FlatModel, to_tensor
from fedmrn_app.methods.mask_decoding import MaskBits, MaskedNoise, ReplyNoise, ThresholdSideInfo
from fedmrn_app.methods.mask_estimate import Estimate, QuantizedEstimate
from fedmrn_app.methods.method import (
    Codec,
    CodecLimits,
    LocalResult,
    LocalTraining,
    Method,
    MethodConfig,
    RunOptions,
    TrainContext,
    conflict,
)
from fedmrn_app.methods.randomized_response import RandomizedResponse
from fedmrn_app.methods.rate_control import RateControl
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import Noise
from fedmrn_app.wire.body import CODED, FACTORED, Body, Coder
from fedmrn_app.wire.mask_model import SideInformation, SideInfoSource
from fedmrn_app.wire.masks import code_mask, decode_mask, pack_mask
from fedmrn_app.wire.primitives import pack_bits, packed_bits, packed_size, wrong_length

_LENGTH = struct.Struct("<I")

# How masks are learned (sections 5.3 and 5.4).
Masking = Literal[
    "psm",  # stochastic masks (SM) and progressive masking (PM): the paper's method
    "sm",  # without PM
    "pm",  # deterministic masks (DM) and PM
    "dm",  # without both
    "post_sm",  # "FedAvg w. SM": plain local SGD, then one SM draw
]
MASKINGS: tuple[Masking, ...] = get_args(Masking)


@dataclass(frozen=True)
class FedMRN(MethodConfig):
    """FedMRN, with binary masks.

    Attributes:
        masking: how masks are learned.
        shared_noise: whether all clients of a round mask the same noise, so that the sum of their masks gives the mean.
        low_rank: whether masks are coded with an estimate of low rank where that takes fewer bytes. None stands for
            True, and for False if there is a budget of bits.
    """

    name = "fedmrn"
    code = 2
    signed: ClassVar[bool] = False
    layouts = ({}, {"low_rank": False})

    masking: Masking = "psm"
    shared_noise: bool = False
    low_rank: bool | None = None

    def build(self, run: RunOptions) -> Method:
        """Return training with masked noise, or plain SGD before the only draw, and a codec of masks."""
        kind = MaskKind(self.signed, deterministic=self.masking in ("pm", "dm"))
        key, value = ("uplink.bits", run.bits) if run.budget is None else ("uplink.budget", run.budget)
        if run.bits is not None and kind.deterministic:
            reason = f"masks by strategy.masking={self.masking} take a bit at any scale of the noise"
            raise conflict(key, value, f"{reason}; set {key}=null")
        shared = self.shared_noise or run.secure
        if shared and run.bits is not None:
            raise conflict(key, value, f"masks of shared noise take a bit per weight; set {key}=null")
        if shared and run.randomized_response is not None:
            flip = run.randomized_response.probability
            raise conflict(
                "privacy.flip", flip, "is not corrected in a sum of masks of shared noise; set privacy.flip=null"
            )
        low_rank = run.bits is None if self.low_rank is None else self.low_rank
        own_noise = NoiseMask(run.noise, kind, run.coder, run.randomized_response, low_rank)
        training = MaskedTraining(run.noise, kind, progressive=self.masking in ("psm", "pm"))
        return Method(
            name=self.name,
            code=self.code,
            codec=SharedNoiseMask(run.noise, kind, "packed") if shared else own_noise,
            training=LocalTraining() if self.masking == "post_sm" else training,
            whole_model=run.randomized_response is not None,  # a dense part beside the mask would not be private
            shared_seed=shared,
            packing=run.downlink,
            rate_control=None if run.bits is None else RateControl(run.bits, run.noise.alpha, self.signed),
            randomized_response=run.randomized_response,
            adds_masks=shared,
        )


@dataclass(frozen=True)
class FedMRNS(FedMRN):
    """FedMRNS, with signed masks."""

    name = "fedmrns"
    code = 3
    signed: ClassVar[bool] = True


@dataclass(frozen=True)
class MaskedTraining(LocalTraining):
    """Training whose forward passes see masked noise; `x` is the update `u` (Algorithm 1, lines 12 to 19)."""

    learns_masks: ClassVar[bool] = True

    noise: Noise
    kind: MaskKind
    progressive: bool

    def train(self, model: FlatModel, local: TrainContext) -> LocalResult:
        """Train `u`, float32 (d,), from zero."""
        steps = len(local.batches)
        n = to_tensor(local.context.noise(self.noise, local.seed)).to(model.device)
        w = to_tensor(local.context.vector).to(model.device)  # what the model holds
        u = torch.zeros_like(w)
        step_on = masked_step(self.kind, Vectors(u, n, w, model.weights))

        def mask_weights(step: int, grads: Iterable[tuple[int, Tensor]]) -> None:
            """Subtract the gradients from `u`, and mask it for the forward pass of `step`."""
            progress, key = self.progress(step, steps), step_key(local.private_seed, step)
            for start, grad in grads:
                step_on(start, grad, local.lr, progress, key)

        mask_weights(1, [(0, torch.zeros_like(u))])
        loss = local.sgd(model, update=lambda step: mask_weights(step + 1, model.grad_parts()))
        return LocalResult(u.cpu().numpy(), loss)

    def progress(self, step: int, steps: int) -> float:
        """Return the probability that an element is masked at a local step (Equation 10)."""
        return step / steps if self.progressive else 1.0


def draw_mask(u: Tensor, n: Tensor, kind: MaskKind, key: int) -> Tensor:
    """Return the mask of an update, bool (d,): True where the noise is kept (Equations 6 and 7)."""
    return to_tensor(uniforms(key, u.numel())) < mask_probability(u, n, kind)


@dataclass(frozen=True)
class NoiseMask(Codec):
    """Body: a mask, 1 where the noise is kept, 0 where it is dropped or, signed, negated.

    plain and coded form   as `wire/masks.py` describes them
    factored form          number of bytes of the estimate (uint32); the estimate; the coded form
    """

    noise: Noise
    kind: MaskKind
    coder: Coder
    randomized_response: RandomizedResponse | None = None
    low_rank: bool = False

    def encode(self, x: Float32Array, context: SharedContext, seed: int, private_seed: int) -> Body:
        """Draw the mask of the update `x` with uniforms that the server knows, and pack it."""
        noise = ReplyNoise(context.scaled(self.noise), seed, context.known_noise(self.noise, seed))
        if not self._streams and noise.vector is None:
            noise = replace(noise, vector=context.noise(self.noise, seed))
        mask = self._draw(x, noise, known_key(seed))
        if self.randomized_response is not None:
            mask = self.randomized_response.apply(mask, private_seed)
        body = pack_mask(mask, partial(self.side_info, noise, context), self.coder)
        if self.coder == "packed" or not self.may_estimate:
            return body
        factored = self._with_estimate(mask, x, noise, context)
        return body if factored is None else min(body, factored, key=len)

    def _draw(self, x: Float32Array, noise: ReplyNoise, key: int) -> NDArray[np.bool_]:
        """Return the mask of the update `x`, bool (d,), with noise that is made block by block where none is held."""
        if self.kind.deterministic:
            assert noise.vector is not None
            return draw_mask(to_tensor(x), to_tensor(noise.vector), self.kind, key).numpy()
        mask = np.empty(x.size, np.bool_)
        for part in blocks(x.size):
            draw(key, x[part], noise.block(part), self.kind.signed, part.start, mask[part])
        return mask

    def _with_estimate(
        self, mask: NDArray[np.bool_], x: Float32Array, noise: ReplyNoise, context: SharedContext
    ) -> Body | None:
        """Return the factored form, or None if `x` has no estimate."""
        found = QuantizedEstimate.of(x, context.layout, noise.noise)
        if found is None:
            return None
        coded = code_mask(mask, self.side_info(noise, context, found.estimate(_to_unit(noise))))
        written = found.to_bytes(self.coder)
        return Body(_LENGTH.pack(len(written)) + written + coded, FACTORED)

    def decode(self, body: Body, context: SharedContext, seed: int) -> Float32Array:
        """Return `G(seed) * m`, float32 (d,)."""
        update = np.full(context.count, -0.0, np.float32)  # adding a zero of either sign to -0.0 keeps that sign
        self.read(body, context, seed).add_to(update, np.float32(1))
        return update

    def read(self, body: Body, context: SharedContext, seed: int) -> MaskedNoise:
        """Return the mask with its noise, which is kept as a vector only where the coder needs all of it."""
        noise = ReplyNoise(context.scaled(self.noise), seed)
        data, estimate = memoryview(body.data), None
        if body.form == FACTORED and self.may_estimate:
            estimate, data = _read_estimate(data, noise, context.layout)
        elif body.form != CODED:
            body.must_be_plain()
            return MaskedNoise(packed_bits(data, context.count), noise, self.kind.signed, self.randomized_response)
        if not self._streams:
            noise = replace(noise, vector=noise.noise(seed, context.count))
        bits = np.packbits(decode_mask(data, self.side_info(noise, context, estimate)), bitorder="little")
        return MaskedNoise(bits, noise, self.kind.signed, self.randomized_response)

    def limits(self, layout: Layout) -> CodecLimits:
        """Allow one bit per weight, and the norm of the noise, which follows from the server's seed and scale."""
        norm = self.noise.rms * math.sqrt(layout.count)
        if self.randomized_response is not None:  # bits then count as at most (1 - P) / (1 - 2 P)
            response = self.randomized_response
            norm *= response.gain * (1 if self.kind.signed else 1 - response.probability)
        return CodecLimits(
            max_bytes=packed_size(layout.count),
            max_norm=norm,
            read_copies=self._read_copies if self._streams else None,
        )

    @property
    def _read_copies(self) -> float:
        # a byte per weight, and the bits of replies that wait; factors have a quarter as many elements as weights
        return 1.25 if self.may_estimate else 0.5

    @property
    def may_estimate(self) -> bool:
        """Whether a body may hold an estimate: not where the mask alone is private, or tells only the update's sign."""
        return self.low_rank and self.randomized_response is None and not self.kind.deterministic

    @property
    def _streams(self) -> bool:
        """Whether noise and thresholds can be generated block by block."""
        return self.noise.distribution == "uniform" and not self.kind.deterministic

    def side_info(self, noise: ReplyNoise, context: SharedContext, estimate: Estimate | None = None) -> SideInfoSource:
        """Return what masks are coded with: their thresholds, or the noise itself if masks are deterministic."""
        scale = _to_unit(noise)
        if not self.kind.deterministic:
            return ThresholdSideInfo(
                layout=context.layout,
                noise=noise,
                thresholds=Thresholds(known_key(noise.seed), scale, self.kind.signed),
                drift=context.drift_of,
                estimate=estimate,
            )
        assert noise.vector is not None
        sign = np.copysign(np.float32(1), noise.vector)
        size = np.minimum(np.abs(noise.vector) * scale, np.float32(1))
        return SideInformation(context.layout, size, sign, context.drift * sign)


def _to_unit(noise: ReplyNoise) -> np.float32:
    """Return the factor that makes thresholds at most 1."""
    return np.float32(1 / noise.largest)


def _read_estimate(data: memoryview, noise: ReplyNoise, layout: Layout) -> tuple[Estimate, memoryview]:
    """Return the estimate at the start of a body, times `_to_unit`, and the rest of the body."""
    if len(data) < _LENGTH.size:
        raise wrong_length("body", data, f"less than {_LENGTH.size}")
    end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    return QuantizedEstimate.from_bytes(data[_LENGTH.size : end], layout).estimate(_to_unit(noise)), data[end:]


@dataclass(frozen=True)
class SharedNoiseMask(NoiseMask):
    """Body: a packed mask of noise that is the same for all clients of a round.

    A contribution is the mask alone, and the mean mask is multiplied by the noise once.
    """

    def encode(self, x: Float32Array, context: SharedContext, seed: int, private_seed: int) -> Body:
        """Draw the mask of the update `x` with uniforms of the client's own, and pack it."""
        n = to_tensor(context.noise(self.noise, seed))
        return Body(pack_bits(draw_mask(to_tensor(x), n, self.kind, known_key(private_seed)).numpy()))

    def read(self, body: Body, context: SharedContext, seed: int) -> MaskBits:  # type: ignore[override]
        """Return the mask."""
        body.must_be_plain()
        return MaskBits(packed_bits(body.data, context.count))

    def finish(self, mean: Float32Array, context: SharedContext, seed: int) -> None:
        """Multiply the mean mask by the noise; the mean of a signed mask is from -1 to 1."""
        if self.kind.signed:
            mean *= np.float32(2)
            mean -= np.float32(1)
        mean *= context.noise(self.noise, seed)

    def limits(self, layout: Layout) -> CodecLimits:
        """Allow one bit per weight, and the norm of a mask that keeps all noise."""
        return CodecLimits(max_bytes=packed_size(layout.count), max_norm=math.sqrt(layout.count), read_copies=0.25)
