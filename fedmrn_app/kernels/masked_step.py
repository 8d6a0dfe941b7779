"""The masked step in the fastest form there is for the device; `masking.py` defines what it computes."""

from __future__ import annotations

from fedmrn_app.kernels.masking import MaskedStep, MaskKind, Vectors, plain_step


def masked_step(kind: MaskKind, vectors: Vectors) -> MaskedStep:
    """Return the fastest form of the step where the vectors are: a kernel on CPUs and CUDA, else `plain_step`."""
    device = vectors.u.device.type
    if device == "cpu":
        from fedmrn_app.kernels.masked_step_cpu import cpu_step

        return cpu_step(kind, vectors)
    if device == "cuda":
        try:
            from fedmrn_app.kernels.masked_step_cuda import cuda_step

            return cuda_step(kind, vectors)
        except ImportError:  # PyTorch brings Triton along on Linux only
            return plain_step(kind, vectors)
    return plain_step(kind, vectors)
