"""Flat views of a module's trained state, with which a method is arithmetic on vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from fedmrn_app.layout import Float32Array, Layout, flatten
from fedmrn_app.learning.step_graphs import StepGraphs

# Modules whose matrices and kernels are masked, as in the published code of Li et al. 2024; all else is dense.
_MASKED_MODULES = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd, nn.RNNBase, nn.MultiheadAttention)


class FlatModel:
    """A module whose parameters are views of two flat float32 buffers.

    The weights of a `whole` model are all its trained parameters. Frozen parameters and integer buffers are in neither
    buffer: every party has them from building the module.

    Attributes:
        module: the module, on its device.
        layout: the masked tensors, in their order in `weights`.
        weights: float32 (d,), the masked weights: matrices and kernels of convolutions, linear and recurrent layers,
            and of any module with the attribute `masked_weights = True`.
        dense: float32 (m,), the other trained parameters, followed by the floating-point buffers, such as the running
            statistics of batch norm.
        dense_sizes: the number of elements of each tensor in `dense`.
        dense_grads: float32, the gradients of the parameters at the beginning of `dense`; autograd adds to them.
        parameter_count: number of trained parameters, masked and dense, without running statistics.
        graphs: recorded passes through the module on a GPU, where it is `static`; None elsewhere.
    """

    def __init__(
        self, module: nn.Module, device: torch.device | str = "cpu", *, whole: bool = False, static: bool = False
    ) -> None:
        """Take over a module.

        Args:
            module: its parameters become views of the buffers.
            device: where the module is moved to.
            whole: whether all trained parameters are weights.
            static: whether the module runs the same operations for each batch of a shape.
        """
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
        self.graphs = StepGraphs(weights) if static and self.device.type == "cuda" else None

    @property
    def device(self) -> torch.device:
        """The device of both buffers."""
        return self.weights.device

    def load(self, weights: Float32Array, dense: Float32Array) -> None:
        """Set the whole state from vectors (d,) and (m,), and integer buffers to their initial values.

        Raises:
            ValueError: a vector has another shape.
        """
        for name, target, source in (("weights", self.weights, weights), ("dense", self.dense, dense)):
            if source.shape != tuple(target.shape):
                raise ValueError(f"{name} has shape {source.shape}, the model needs {tuple(target.shape)}")
            if target.device.type == "cpu":
                np.copyto(target.numpy(), source)
            else:
                target.copy_(to_tensor(source))
        for buffer, initial in self._integers:
            buffer.copy_(initial)

    def state(self) -> tuple[Float32Array, Float32Array]:
        """Return copies of `weights` (d,) and `dense` (m,) as NumPy vectors."""
        return self.weights.cpu().numpy().copy(), self.dense.cpu().numpy().copy()

    def zero_grads(self) -> None:
        """Discard the gradients of the masked weights, and set those of the dense parameters to zero."""
        for parameter in self._masked:
            parameter.grad = None  # autograd then sets the tensor that it computes, without an addition
        self.dense_grads.zero_()

    def grad_parts(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the start in `weights` and the flat gradient of each masked tensor, in the order of `weights`."""
        for start, parameter in zip(self.layout.offsets, self._masked, strict=True):
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            yield start, flatten(grad)

    @property
    def weight_grads(self) -> Tensor:
        """A copy of the gradient of the masked weights, float32 (d,)."""
        return torch.cat([grad for _, grad in self.grad_parts()])

    def add_weight_decay(self, l2: float) -> None:
        """Add the gradient of l2 / 2 times the squared norm of all trained parameters."""
        for start, grad in self.grad_parts():
            grad.add_(self.weights[start : start + grad.numel()], alpha=l2)
        self.dense_grads.add_(self.dense[: self.dense_grads.numel()], alpha=l2)

    def weights_step(self, lr: float) -> None:
        """Add -lr * gradient to the masked weights."""
        for start, grad in self.grad_parts():
            self.weights[start : start + grad.numel()].add_(grad, alpha=-lr)

    def dense_step(self, lr: float) -> None:
        """Add -lr * gradient to the dense parameters."""
        self.dense[: self.dense_grads.numel()].add_(self.dense_grads, alpha=-lr)


def trained_parameters(module: nn.Module, *, whole: bool = False) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the masked weights and the other trained parameters, in the module's order; tied parameters occur once.

    Raises:
        ValueError: there are no such weights, or a trained tensor or a statistic is not float32.
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
        computed = next((name for name, layer in module.named_modules() if is_parametrized(layer)), None)
        reason = "has no trained matrices or kernels of linear, convolutional or recurrent layers"
        if computed is not None:
            reason += (
                f"; {computed or 'it'} computes its weight from other tensors (weight_norm, spectral_norm or another "
                "parametrization); take the layer without it"
            )
        raise ValueError(reason)
    return weights, [p for p in trained if not (whole or id(p) in masked)]


def state_sha256(weights: Float32Array, dense: Float32Array) -> str:
    """Return the SHA-256 of the little-endian float32 bytes of both vectors, which identifies an exact model."""
    digest = hashlib.sha256()
    for vector in (weights, dense):
        digest.update(np.ascontiguousarray(vector, "<f4").data)
    return digest.hexdigest()


def to_tensor(vector: Float32Array) -> Tensor:
    """Return a NumPy vector as a tensor: a view, or a copy of a read-only vector."""
    return torch.from_numpy(vector if vector.flags.writeable else vector.copy())


def _gather(tensors: Sequence[Tensor], device: torch.device | str) -> Tensor:
    """Copy the tensors into a new flat float32 buffer, and make them views of it."""
    flat = torch.empty(sum(t.numel() for t in tensors), dtype=torch.float32, device=device)
    for tensor, view in zip(tensors, _views(flat, tensors), strict=True):
        view.copy_(tensor)
        tensor.data = view
    return flat


def _views(flat: Tensor, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """Return consecutive parts of `flat` in the tensors' shapes."""
    return Layout(tuple(tuple(t.shape) for t in tensors)).views(flat)
