"""Local training by SGD without momentum (Li et al. 2024, section 5.1.4), which all methods share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from fedmrn_app.learning.batches import Batches
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.validation import Count, NotNegative, Positive

Precision = Literal["float32", "bfloat16"]
AbsentLabels = Literal["kept", "zero", "masked"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    """Settings of the local training of one client in one round."""

    epochs: Count  # passes over the client's samples
    batch_size: Count  # samples of a local step
    lr: Positive  # step size of SGD
    steps: Count | None = None  # number of local steps, instead of epochs
    weight_decay: NotNegative = 0.0  # see `local_sgd`
    absent_labels: AbsentLabels = "kept"  # logits, in a client's loss, of labels of which it has no samples


def local_sgd(
    model: FlatModel,
    batches: Batches,
    lr: float,
    *,
    precision: Precision = "float32",
    weight_decay: float = 0.0,
    before_step: Callable[[int], None] | None = None,
    update: Callable[[int], None] | None = None,
) -> float:
    """Train on all batches, in place.

    Args:
        model: the model; its dense parameters are trained too.
        batches: the client's batches, one for each of the S = len(batches) local steps.
        lr: step size of SGD.
        precision: `bfloat16` runs the forward pass under autocast.
        weight_decay: l2; l2 / 2 times the squared norm of all trained parameters is added to the loss.
        before_step: called with the step number t = 1..S before each forward pass, to set `model.weights`.
        update: called with the step number after each backward pass, to use the gradients of the masked weights;
            None subtracts `lr` times the gradients from the weights.

    Returns:
        The mean training loss over all steps.
    """
    model.module.train()
    total = torch.zeros((), device=model.device)
    with flushed_denormals():
        for step, (x, y) in enumerate(batches, 1):
            if before_step is not None:
                before_step(step)
            loss = _backward(model, batches, x, y, precision, weight_decay)
            if update is None:
                model.weights_step(lr)
            else:
                update(step)
            model.dense_step(lr)
            total += loss
    if model.graphs is None:  # which replay into the same memory
        model.zero_grads()
    return float(total) / len(batches)


def full_gradient(
    model: FlatModel, batches: Batches, precision: Precision = "float32", weight_decay: float = 0.0
) -> tuple[Tensor, float]:
    """Return the gradient of the masked weights over all samples, float32 (d,), and the mean loss.

    The weights do not change, but running statistics do.
    """
    model.module.train()
    gradient, total, count = torch.zeros_like(model.weights), 0.0, 0
    with flushed_denormals():
        for x, y in batches.one_pass():
            loss = _backward(model, batches, x, y, precision, weight_decay)
            gradient.add_(model.weight_grads, alpha=len(y))
            total, count = total + float(loss) * len(y), count + len(y)
    return gradient.div_(count), total / count


def _backward(
    model: FlatModel, batches: Batches, x: Tensor, y: Tensor, precision: Precision, weight_decay: float
) -> Tensor:
    """Compute the gradients of one batch, and return its loss."""

    def passes(x: Tensor, y: Tensor) -> Tensor:
        model.zero_grads()
        with autocast(model.device, precision):
            loss: Tensor = batches.loss(model.module(x), y)
        torch.autograd.backward(loss)
        if weight_decay:
            model.add_weight_decay(weight_decay)
        return loss.detach()

    if model.graphs is None or batches.masks_labels:
        return passes(x, y)
    return model.graphs.run(passes, x, y, precision, weight_decay)


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Replace numbers that are too small for a normal float32 by zero, which is much faster on CPUs.

    Outside of the context they are kept, because results that server and clients both compute must not depend on this.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Return the autocast context of a precision, which changes nothing for float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def emulates_bfloat16(device: torch.device) -> bool:
    """Return whether PyTorch emulates bfloat16 on a device, which takes several times as long as float32.

    It does so on x86 processors without AVX-512, and on ARM ones without the extension for bfloat16.
    """
    is_supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)  # missing where oneDNN is
    return device.type == "cpu" and is_supported is not None and not is_supported()
