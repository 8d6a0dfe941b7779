"""The compiled masked steps give the bits of the plain form, which follows the paper's probabilities."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from fedmrn_app.kernels.counter_rng import random_words, unit_floats
from fedmrn_app.kernels.masked_step import masked_step
from fedmrn_app.kernels.masking import MaskedStep, MaskKind, Vectors, clip_update, mask_probability, plain_step

KINDS = [MaskKind(signed, deterministic) for signed in (False, True) for deterministic in (False, True)]
KEY = 0xDEADBEEF12345678


def tensors(count: int) -> tuple[Vectors, Tensor]:
    """Return vectors and a gradient; u exceeds the noise in both directions, and some elements are zero."""
    generator = torch.Generator().manual_seed(0)
    u, n, w, grad = torch.randn(4, count, generator=generator) * 0.01
    u[::7] = 0
    grad[::14] = 0
    return Vectors(u.clone(), n.clone(), w.clone(), torch.zeros(count)), grad.clone()


Make = Callable[[MaskKind, Vectors], MaskedStep]


def run(make: Make, kind: MaskKind, count: int, progress: float, cuts: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Take a step, in parts if there are cuts; return u and the weights."""
    vectors, grad = tensors(count)
    step = make(kind, vectors)
    for start, end in pairwise([0, *cuts, count]):
        step(start, grad[start:end], 0.3, progress, KEY)
    return vectors.u, vectors.out


def check_equals_plain(make: Make, kinds: Iterable[MaskKind], count: int, cuts: Sequence[int] = ()) -> None:
    """Assert that `make` gives the bits of the plain form, which takes the step in one part."""
    for kind in kinds:
        for progress in (0.0, 0.3, 1.0):
            pairs = zip(run(make, kind, count, progress, cuts), run(plain_step, kind, count, progress), strict=True)
            for got, expected in pairs:
                assert torch.equal(got, expected), (kind, progress)


@pytest.mark.parametrize(("count", "cuts"), [(1, ()), (1003, ()), (5000, (7, 1234, 4999))])
def test_cpu_kernel_gives_the_bits_of_the_plain_form(count: int, cuts: Sequence[int]) -> None:
    check_equals_plain(masked_step, KINDS, count, cuts)


@pytest.mark.slow
def test_cuda_kernel_gives_the_bits_of_the_plain_form() -> None:
    """Triton's interpreter runs the kernel's own code on the CPU."""
    pytest.importorskip("triton")
    code = "from tests.kernels.test_masked_step import *; from fedmrn_app.kernels.masked_step_cuda import cuda_step; "
    code += "check_equals_plain(cuda_step, KINDS, 5003)"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


@pytest.mark.slow
def test_cuda_kernel_compiles() -> None:
    """Triton compiles for a GPU without one; what it cannot compile its interpreter may still run."""
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    from fedmrn_app.kernels.masked_step_cuda import BLOCK, _kernel

    types = dict.fromkeys(("u_start", "n_start", "w_start", "out_start", "grad_start"), "*fp32")
    types |= {"lr": "fp32", "progress": "fp32"} | dict.fromkeys(("count", "low", "high"), "i32")
    for kind in KINDS:
        constants = {"signed": kind.signed, "deterministic": kind.deterministic, "block": BLOCK}
        source = compiler.ASTSource(_kernel, types | dict.fromkeys(constants, "constexpr"), constexprs=constants)
        compiled = compiler.compile(source, target=target, options={"enable_fp_fusion": False})
        assert "fma.rn" not in compiled.asm["ptx"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_kernel_on_a_gpu() -> None:
    def to_gpu(kind: MaskKind, vectors: Vectors) -> MaskedStep:
        on_gpu = Vectors(vectors.u.cuda(), vectors.n.cuda(), vectors.w.cuda(), vectors.out.cuda())
        step = masked_step(kind, on_gpu)

        def moved(start: int, grad: Tensor, lr: float, progress: float, key: int) -> None:
            step(start, grad.cuda(), lr, progress, key)
            vectors.u.copy_(on_gpu.u)
            vectors.out.copy_(on_gpu.out)

        return moved

    check_equals_plain(to_gpu, KINDS, 1_000_003)


@pytest.mark.parametrize("kind", KINDS)
def test_progress_is_the_probability_of_being_masked(kind: MaskKind) -> None:
    count = 200_000
    bound = 4 * 0.5 / count**0.5
    n = tensors(count)[0].n
    zeros, out = torch.zeros(count), torch.empty(count)
    dropped = -n if kind.signed else zeros
    for progress in (0.0, 0.25, 0.5, 1.0):
        u = 0.3 * n  # inside both intervals, so an element that is not masked equals u
        masked_step(kind, Vectors(u, n, zeros, out))(0, zeros, 1.0, progress, KEY)
        masked = out != u
        assert float(masked.float().mean()) == pytest.approx(progress, abs=bound)
        assert ((out == n) | (out == dropped))[masked].all()
    kept = float((out == n).float().mean())
    assert kept == pytest.approx(1 if kind.deterministic else (0.65 if kind.signed else 0.3), abs=bound)


def test_plain_form_is_the_formula() -> None:
    vectors, grad = tensors(1000)
    u, n, w = vectors.u, vectors.n, vectors.w
    v = unit_floats(random_words(KEY, 1000)).numpy()
    _, out = run(plain_step, MaskKind(signed=False), 1000, 0.5)
    ratio = np.clip((u - 0.3 * grad).numpy() / n.numpy(), 0, 1)
    expected = w.numpy() + np.where(v < 0.5, np.where(v < 0.5 * ratio, n.numpy(), 0), ratio * n.numpy())
    np.testing.assert_allclose(out.numpy(), expected, atol=1e-8)
    assert torch.equal(mask_probability(u, n, MaskKind(True)), ((u / n) * 0.5 + 0.5).clamp(0, 1))
    n = torch.tensor([2.0, 2.0, 2.0, -2.0, -2.0, -2.0])
    u = torch.tensor([3.0, 1.0, -3.0, 3.0, -1.0, -3.0])
    assert clip_update(u, n, False).tolist() == [2, 1, 0, 0, -1, -2]
    assert clip_update(u, n, True).tolist() == [2, 1, -2, 2, -1, -2]
