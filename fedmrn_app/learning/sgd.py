"""Local training: SGD (Li et al. 2024, section 5.1.4), without momentum, the loop that all methods share."""

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


@dataclass(frozen=True)
class LocalSettings:
    """Local training of one client in one round.

    Attributes:
        epochs: passes over the client's samples.
        batch_size: samples of a local step.
        lr: step size of SGD.
        steps: so many local steps, whatever the epochs; None for whole epochs.
        weight_decay: see `local_sgd`.
        absent_labels: what becomes of the logits of labels that a client has no samples of, in its loss: they stay,
            they are zero, or they are left out.
    """

    epochs: Count
    batch_size: Count
    lr: Positive
    steps: Count | None = None
    weight_decay: NotNegative = 0.0
    absent_labels: AbsentLabels = "kept"


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
        model: the model; its dense part is trained too.
        batches: the client's batches; S = len(batches) local steps, whose loss is that of their task.
        lr: step size of SGD.
        precision: `bfloat16` runs the forward pass under autocast.
        weight_decay: l2, half of which times the squared norm of all trained parameters is added to the loss.
        before_step: called with the step number t = 1..S before each forward pass, to set `model.weights`.
        update: called with the step number after each backward pass, to use the gradients of the masked weights; by
            default they are subtracted from the weights, times `lr`.

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
    return float(total) / len(batches)


def full_gradient(
    model: FlatModel, batches: Batches, precision: Precision = "float32", weight_decay: float = 0.0
) -> tuple[Tensor, float]:
    """The gradient of the masked weights over one pass of all samples, float32 (d,), and the mean loss.

    The weights stay as they are; running statistics do not.
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
    """Compute the gradients of one batch anew, and return its loss."""
    model.zero_grads()
    with autocast(model.device, precision):
        loss: Tensor = batches.loss(model.module(x), y)
    torch.autograd.backward(loss)
    if weight_decay:
        model.add_weight_decay(weight_decay)
    return loss.detach()


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Numbers too small for a normal float32 become zero, which CPUs compute with much faster.

    Outside they stay: what server and clients both compute must not depend on it.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """The autocast context of a precision; for float32 it changes nothing."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
