"""The fused kernels give the bits of their plain forms, and those follow the paper's probabilities."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedmrn_app.kernels.counter_rng import random_words, unit_floats
from fedmrn_app.kernels.masked_step import masked_step
from fedmrn_app.kernels.masking import MaskedStep, MaskKind, Vectors, clip_update, mask_probability, plain_step
from fedmrn_app.kernels.team import PART
from tests.helpers import torch_threads

KINDS = [MaskKind(signed, deterministic) for signed in (False, True) for deterministic in (False, True)]
KEY = 0xDEADBEEF12345678


def tensors(count: int) -> tuple[Vectors, Tensor]:
    """Vectors and a gradient; u goes beyond the noise in both directions and is zero at times."""
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


def check_equals_plain(make: Make, count: int) -> None:
    """For every kind of masking, `make` gives the bits of the plain form."""
    for kind in KINDS:
        for progress in (0.0, 0.3, 1.0):
            pairs = zip(run(make, kind, count, progress), run(plain_step, kind, count, progress), strict=True)
            for got, expected in pairs:
                assert torch.equal(got, expected), (kind, progress)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [1, 1003, 2 * PART + 5])
def test_cpu_kernel_gives_the_bits_of_the_plain_form(count: int, threads: int) -> None:
    with torch_threads(threads):
        check_equals_plain(masked_step, count)


def test_kinds_that_other_processes_have_compiled_are_told_apart(tmp_path: Path) -> None:
    """A thread's entry calls its loop by a symbol, which must not be that of another kind found on disk."""

    def python(code: str) -> None:
        command = [sys.executable, "-c", f"from tests.kernels.test_masked_step import *; {code}"]
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        process = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr

    for number in (0, 2):
        python(f"run(masked_step, KINDS[{number}], 5, 0.3)")
    load_all = "[run(masked_step, kind, 5, 0.3) for kind in KINDS]"
    python(f"{load_all}; torch.set_num_threads(2); check_equals_plain(masked_step, 2 * PART + 5)")


@pytest.mark.slow
def test_cuda_kernel_gives_the_bits_of_the_plain_form() -> None:
    """In Triton's interpreter, which runs the kernel's own code on the CPU."""
    pytest.importorskip("triton")
    code = "from tests.kernels.test_masked_step import *; from fedmrn_app.kernels.masked_step_cuda import cuda_step; "
    code += "check_equals_plain(cuda_step, 5003)"
    process = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr


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

    check_equals_plain(to_gpu, 1_000_003)


@pytest.mark.parametrize("kind", KINDS)
def test_a_vector_in_parts_is_the_whole_vector(kind: MaskKind) -> None:
    whole = run(masked_step, kind, 5000, 0.4)
    parts = run(masked_step, kind, 5000, 0.4, cuts=[7, 1234, 4999])
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("progress", [0.0, 0.25, 0.5, 1.0])
def test_share_of_masked_elements_is_the_progress(kind: MaskKind, progress: float) -> None:
    count = 200_000
    n = tensors(count)[0].n
    u = 0.3 * n  # inside both intervals, so what is not masked shows as u itself
    zeros, out = torch.zeros(count), torch.empty(count)
    masked_step(kind, Vectors(u, n, zeros, out))(0, zeros, 1.0, progress, KEY)
    masked = out != u
    bound = 4 * 0.5 / count**0.5
    assert float(masked.float().mean()) == pytest.approx(progress, abs=bound)
    dropped = -n if kind.signed else zeros
    assert ((out == n) | (out == dropped))[masked].all()
    if progress == 1:
        share = float((out == n).float().mean())
        assert share == pytest.approx(1 if kind.deterministic else (0.65 if kind.signed else 0.3), abs=bound)


def test_plain_form_is_the_formula() -> None:
    vectors, grad = tensors(1000)
    u, n, w = vectors.u, vectors.n, vectors.w
    v = unit_floats(random_words(KEY, 1000)).numpy()
    _, out = run(plain_step, MaskKind(signed=False), 1000, 0.5)
    moved = (u - 0.3 * grad).numpy()
    ratio = np.clip(moved / n.numpy(), 0, 1)
    expected = w.numpy() + np.where(v < 0.5, np.where(v < 0.5 * ratio, n.numpy(), 0), ratio * n.numpy())
    np.testing.assert_allclose(out.numpy(), expected, atol=1e-8)
    assert torch.equal(clip_update(u, n, True), torch.minimum(torch.maximum(u, -n.abs()), n.abs()))
    assert torch.equal(mask_probability(u, n, MaskKind(True)), ((u / n) * 0.5 + 0.5).clamp(0, 1))


def test_clipping() -> None:
    n = torch.tensor([2.0, 2.0, 2.0, -2.0, -2.0, -2.0])
    u = torch.tensor([3.0, 1.0, -3.0, 3.0, -1.0, -3.0])
    assert clip_update(u, n, False).tolist() == [2, 1, 0, 0, -1, -2]
    assert clip_update(u, n, True).tolist() == [2, 1, -2, 2, -1, -2]
