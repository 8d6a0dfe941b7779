"""The masked step, in the fastest form for the device; `masking.py` defines what it computes."""

from __future__ import annotations

from fedmrn_app.kernels.masking import MaskedStep, MaskKind, Vectors, plain_step


def masked_step(kind: MaskKind, vectors: Vectors) -> MaskedStep:
    """Return a compiled step for vectors on a CPU or on CUDA, and `plain_step` for other devices."""
    device = vectors.u.device.type
    if device == "cpu":
        from fedmrn_app.kernels.masked_step_cpu import cpu_step

        return cpu_step(kind, vectors)
    if device == "cuda":
        try:
            from fedmrn_app.kernels.masked_step_cuda import cuda_step

            return cuda_step(kind, vectors)
        except ImportError:  # PyTorch depends on Triton on Linux only
            return plain_step(kind, vectors)
    return plain_step(kind, vectors)
