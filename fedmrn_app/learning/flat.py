"""A module whose trained state lives in two flat float32 buffers, so that a method is arithmetic on vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedmrn_app.layout import Float32Array, Layout, flatten

# Modules whose matrices and kernels are masked, as in the published code of Li et al. 2024; the rest goes densely.
_MASKED_MODULES = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd, nn.RNNBase, nn.MultiheadAttention)


class FlatModel:
    """Views of a module's state in flat buffers; the module's own parameters are those views.

    Attributes:
        module: the module, on its device.
        layout: the masked tensors, in their order in `weights`.
        weights: float32 (d,), the masked weights: matrices and kernels of convolutions, linear and recurrent layers,
            and those of any module with the attribute `masked_weights = True`.
        dense: float32 (m,), the rest of the trained state: first all other trained parameters, then the floating-point
            buffers, such as batch-norm's running statistics.
        dense_sizes: the elements of each tensor in `dense`.
        dense_grads: float32, the gradients of the parameters in `dense`, which are its first `dense_grads.numel()`;
            autograd adds to them. Those of the masked weights it makes anew in each step, see `grad_parts`.
        parameter_count: number of trained parameters, masked and dense, running statistics not among them.

    A `whole` model's weights are all its trained parameters. Frozen parameters and integer buffers are part of
    neither: every party has them from building the module.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu", *, whole: bool = False) -> None:
        self.module = module.to(device)
        weights, rest = trained_parameters(module, whole=whole)
        statistics = [b for b in module.buffers() if b.is_floating_point()]
        self.layout = Layout(tuple(tuple(p.shape) for p in weights))
        self.dense_sizes = [t.numel() for t in rest + statistics]
        self._masked = weights
        self._integers = [(b, b.clone()) for b in module.buffers() if not b.is_floating_point()]
        with torch.no_grad():
            self.weights = _gather(weights, device)
            self.dense = _gather(rest + statistics, device)
            self.dense_grads = torch.zeros(sum(p.numel() for p in rest), device=device)
            for parameter, view in zip(rest, _views(self.dense_grads, rest), strict=True):
                parameter.grad = view
        self.parameter_count = self.weights.numel() + self.dense_grads.numel()

    @property
    def device(self) -> torch.device:
        """Device of all buffers."""
        return self.weights.device

    def load(self, weights: Float32Array, dense: Float32Array) -> None:
        """Set the whole state from two vectors of shapes (d,) and (m,); integer buffers return to their first values.

        Raises:
            ValueError: a vector has another shape.
        """
        for name, target, source in (("weights", self.weights, weights), ("dense", self.dense, dense)):
            if source.shape != tuple(target.shape):
                raise ValueError(f"{name} has shape {source.shape}, the model needs {tuple(target.shape)}")
            target.copy_(to_tensor(source))
        for buffer, first in self._integers:
            buffer.copy_(first)

    def state(self) -> tuple[Float32Array, Float32Array]:
        """Return copies of (weights, dense) as NumPy vectors of shapes (d,) and (m,)."""
        return self.weights.cpu().numpy().copy(), self.dense.cpu().numpy().copy()

    def zero_grads(self) -> None:
        """Forget the gradients of the masked weights, and set those of the dense part to zero."""
        for parameter in self._masked:
            parameter.grad = None  # autograd then hands over the tensor it computed, and adds nothing
        self.dense_grads.zero_()

    def grad_parts(self) -> Iterator[tuple[int, Tensor]]:
        """For each masked tensor (where it starts in `weights`, its gradient), flat and in the order of `weights`."""
        for start, parameter in zip(self.layout.offsets, self._masked, strict=True):
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            yield start, flatten(grad)

    @property
    def weight_grads(self) -> Tensor:
        """A copy of the gradients of the masked weights, float32 (d,)."""
        return torch.cat([grad for _, grad in self.grad_parts()])

    def add_weight_decay(self, l2: float) -> None:
        """Add the gradient of l2 / 2 times the squared norm of all trained parameters, as they are now."""
        for start, grad in self.grad_parts():
            grad.add_(self.weights[start : start + grad.numel()], alpha=l2)
        self.dense_grads.add_(self.dense[: self.dense_grads.numel()], alpha=l2)

    def weights_step(self, lr: float) -> None:
        """Add -lr * gradient to the masked weights."""
        for start, grad in self.grad_parts():
            self.weights[start : start + grad.numel()].add_(grad, alpha=-lr)

    def dense_step(self, lr: float) -> None:
        """Add -lr * gradient to the trained parameters of the dense part."""
        self.dense[: self.dense_grads.numel()].add_(self.dense_grads, alpha=-lr)


def trained_parameters(module: nn.Module, *, whole: bool = False) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The trained parameters that are masked weights, and the others, each in the module's order; tied ones come once.

    Raises:
        ValueError: there is nothing to mask, or a trained tensor or a statistic is not float32.
    """
    masked = {
        id(p)
        for m in module.modules()
        if isinstance(m, _MASKED_MODULES) or getattr(m, "masked_weights", False)
        for p in m.parameters(recurse=False)
        if p.dim() >= 2
    }
    trained = [p for p in module.parameters() if p.requires_grad]
    for tensor in (*trained, *(b for b in module.buffers() if b.is_floating_point())):
        if tensor.dtype != torch.float32:
            raise ValueError(f"a trained tensor of shape {tuple(tensor.shape)} is {tensor.dtype}, not float32")
    weights = [p for p in trained if whole or id(p) in masked]
    if not weights:
        raise ValueError("has no trained matrices or kernels of linear, convolutional or recurrent layers to mask")
    return weights, [p for p in trained if not (whole or id(p) in masked)]


def state_sha256(weights: Float32Array, dense: Float32Array) -> str:
    """SHA-256 over the little-endian float32 bytes of both vectors: one name for one exact model."""
    digest = hashlib.sha256()
    for vector in (weights, dense):
        digest.update(np.ascontiguousarray(vector, "<f4").tobytes())
    return digest.hexdigest()


def to_tensor(vector: Float32Array) -> Tensor:
    """View a NumPy vector as a tensor, copying only when it is read-only."""
    return torch.from_numpy(vector if vector.flags.writeable else vector.copy())


def _gather(tensors: Sequence[Tensor], device: torch.device | str) -> Tensor:
    """Move the tensors' values into one new flat float32 buffer and make the tensors views of it."""
    flat = torch.empty(sum(t.numel() for t in tensors), dtype=torch.float32, device=device)
    for tensor, view in zip(tensors, _views(flat, tensors), strict=True):
        view.copy_(tensor)
        tensor.data = view
    return flat


def _views(flat: Tensor, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """Consecutive pieces of `flat` in the tensors' shapes."""
    return Layout(tuple(tuple(t.shape) for t in tensors)).views(flat)
