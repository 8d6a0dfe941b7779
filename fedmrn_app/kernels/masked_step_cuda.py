"""The masked step for CUDA: one Triton kernel, which draws the same random words in registers."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fedmrn_app.kernels.counter_rng import MULTIPLIERS, first_word
from fedmrn_app.kernels.masking import MaskedStep, MaskKind, Vectors

BLOCK = 1024
_FIRST, _SECOND = (tl.constexpr(multiplier) for multiplier in MULTIPLIERS)


@triton.jit(do_not_specialize=["count", "low", "high"])  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]  # Triton compiles annotations and knows no type but its own
    u_start, n_start, w_start, out_start, grad_start, count, lr, progress, low, high,
    signed: tl.constexpr, deterministic: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < count
    x = i.to(tl.uint32) + low.to(tl.uint32, bitcast=True)
    x = ((x ^ (x >> 16)) * _FIRST) ^ high.to(tl.uint32, bitcast=True)
    x = (x ^ (x >> 15)) * _SECOND
    v = ((x ^ (x >> 16)) >> 8).to(tl.int32).to(tl.float32) * (2.0**-24)
    n = tl.load(n_start + i, mask=inside, other=1.0)
    u = tl.load(u_start + i, mask=inside, other=0.0) - lr * tl.load(grad_start + i, mask=inside, other=0.0)
    tl.store(u_start + i, u, mask=inside)
    if deterministic:
        p = (((u > 0) & (n > 0)) | ((u < 0) & (n < 0))).to(tl.float32)
    else:
        p = tl.div_rn(u, n)
        if signed:
            p = 0.5 * p + 0.5
        p = tl.minimum(tl.maximum(p, 0.0), 1.0)
    if signed:
        limit = tl.abs(n)
        clipped = tl.minimum(tl.maximum(u, -limit), limit)
        dropped = -n
    else:
        clipped = tl.minimum(tl.maximum(u, tl.minimum(n, 0.0)), tl.maximum(n, 0.0))
        dropped = tl.zeros_like(n)
    masked = tl.where(v < p * progress, n, dropped)
    weights = tl.load(w_start + i, mask=inside, other=0.0) + tl.where(v < progress, masked, clipped)
    tl.store(out_start + i, weights, mask=inside)


def cuda_step(kind: MaskKind, vectors: Vectors) -> MaskedStep:
    """Return the step for one kind of masks on given vectors."""

    def step(start: int, grad: Tensor, lr: float, progress: float, key: int) -> None:
        low, high = first_word(key, start)
        count = grad.numel()
        u, n, w, out = (vector[start : start + count] for vector in (vectors.u, vectors.n, vectors.w, vectors.out))
        _kernel[(triton.cdiv(count, BLOCK),)](
            u, n, w, out, grad, count, lr, progress, _int32(low), _int32(high),
            signed=kind.signed, deterministic=kind.deterministic, block=BLOCK,
            enable_fp_fusion=False,  # a fused product and sum is rounded once, unlike the plain form
        )  # fmt: skip

    return step


def _int32(word: int) -> int:
    """Return the signed integer with the same 32 bits, so that Triton gives all values the same type."""
    return (word + (1 << 31)) % (1 << 32) - (1 << 31)
