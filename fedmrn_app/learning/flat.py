"""A module whose trained state lives in two flat float32 buffers, so that a method is arithmetic on vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedmrn_app.noise import Float32Array
from fedmrn_app.shapes import Shapes

# Modules whose matrices and kernels are masked; everything else that is trained goes densely (Li et al. 2024, 5.1).
_MASKED_MODULES = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd, nn.RNNBase, nn.MultiheadAttention)


class FlatModel:
    """Views of a module's state in flat buffers; the module's own parameters are those views.

    Attributes:
        module: the module, on its device.
        shapes: the shapes of the masked tensors, in their order in `weights`.
        weights: float32 (d,), the masked weights: matrices and kernels of convolutions and linear layers. A 4-D
            kernel lies in channels-last order.
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
        masked = {
            id(p)
            for m in module.modules()
            if isinstance(m, _MASKED_MODULES)
            for p in m.parameters(recurse=False)
            if p.dim() >= 2
        }
        if whole:
            masked = {id(p) for p in module.parameters()}
        trained = [p for p in module.parameters() if p.requires_grad]  # tied parameters come once
        weights = [p for p in trained if id(p) in masked]
        rest = [p for p in trained if id(p) not in masked]
        statistics = [b for b in module.buffers() if b.is_floating_point()]
        for tensor in (*trained, *statistics):
            if tensor.dtype != torch.float32:
                raise ValueError(f"a trained tensor of shape {tuple(tensor.shape)} is {tensor.dtype}, not float32")
        self.shapes: Shapes = tuple(tuple(p.shape) for p in weights)
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
        start = 0
        for parameter in self._masked:
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            yield start, _flat(grad)
            start += parameter.numel()

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


def _flat(tensor: Tensor) -> Tensor:
    """The elements of a tensor in the order in which `_views` lays them out; no copy where they lie so."""
    return (tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor).reshape(-1)


def _views(flat: Tensor, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """Consecutive pieces of `flat` in the tensors' shapes; 4-D ones in channels-last order, convolutions' fastest."""
    start = 0
    for tensor in tensors:
        piece = flat[start : start + tensor.numel()]
        start += tensor.numel()
        if tensor.dim() == 4:
            n, c, h, w = tensor.shape
            yield piece.view(n, h, w, c).permute(0, 3, 1, 2)
        else:
            yield piece.view(tensor.shape)
