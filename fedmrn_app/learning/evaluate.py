"""Metrics and loss of a model on one split."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.tasks.task import Samples, Task

Watch = Callable[[int, int], object]  # rows so far, and all rows
WatchWork = Callable[[str, int, int], object]  # what is done, how much of it so far, and of how much

_BATCH = 200  # the allocator returns the memory of larger activations to the system after each batch
_LARGE_BATCH = 500
_ELEMENTS = 400 * 3 * 32 * 32  # of the inputs of a batch, at most


@dataclass(frozen=True)
class Evaluation:
    """The task's metrics by name, and the mean loss."""

    metrics: dict[str, float]
    loss: float

    @property
    def headline(self) -> float:
        """The first metric."""
        return next(iter(self.metrics.values()))


def evaluate(model: FlatModel, task: Task, samples: Samples, watch: Watch = lambda done, total: None) -> Evaluation:
    """Evaluate in evaluation mode and float32; the loss is the mean over samples.

    Args:
        model: the model.
        task: what is learned.
        samples: the rows.
        watch: called after each batch with the number of rows so far and of all rows.

    Raises:
        ValueError: there are no samples.
    """
    counts, loss = tally(model, task, samples, watch)
    return Evaluation(task.read(counts), loss / len(samples))


@torch.inference_mode()
def tally(
    model: FlatModel, task: Task, samples: Samples, watch: Watch = lambda done, total: None
) -> tuple[NDArray[Any], float]:
    """Return the task's counts and the sum of the losses of all samples, in evaluation mode and float32.

    Raises:
        ValueError: there are no samples.
    """
    model.module.eval()
    total: Tensor | None = None
    loss = torch.zeros((), dtype=torch.float64, device=model.device)
    done = 0
    for x, y in _batches(model, task, samples):
        outputs = model.module(x)
        counted = task.tally(outputs, y)
        total = counted if total is None else total + counted
        loss += task.loss(outputs, y) * len(y)
        done += len(y)
        watch(done, len(samples))
    if total is None:
        raise ValueError("there are no samples to evaluate on")
    return total.cpu().numpy(), float(loss)


@contextmanager
def measured_norms(model: FlatModel, task: Task, samples: Samples | None) -> Iterator[None]:
    """Give static batch norm the statistics of `samples` within the context; None changes nothing.

    The statistics are the means of the batches' means and variances (Diao et al. 2021, HeteroFL), found in one pass.
    """
    norms = [] if samples is None else static_norms(model.module)
    if samples is None or not norms:
        yield
        return
    momenta = [norm.momentum for norm in norms]
    try:
        model.module.eval()
        for norm in norms:
            norm.running_mean = torch.zeros(norm.num_features, device=model.device)
            norm.running_var = torch.ones(norm.num_features, device=model.device)
            norm.num_batches_tracked = torch.zeros((), dtype=torch.int64, device=model.device)
            norm.track_running_stats, norm.momentum = True, None  # None: all batches have the same weight
            norm.train()
        with torch.no_grad():
            for x, _ in _batches(model, task, samples):
                model.module(x)
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.running_mean = norm.running_var = norm.num_batches_tracked = None
            norm.track_running_stats, norm.momentum = False, momentum


def static_norms(module: nn.Module) -> list[nn.BatchNorm2d]:
    """Return the layers of batch norm that keep no statistics."""
    return [m for m in module.modules() if isinstance(m, nn.BatchNorm2d) and not m.track_running_stats]


def _batches(model: FlatModel, task: Task, samples: Samples) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all samples in their order, without augmentation; static batch norm gets larger batches."""
    batch_size = _LARGE_BATCH if static_norms(model.module) or model.device.type != "cpu" else _BATCH
    size = int(np.prod(samples.take(slice(0, 1))[0].shape[1:]))
    batch_size = max(1, min(batch_size, _ELEMENTS // size))
    batches = -(-len(samples) // batch_size)
    for batch in range(batches):  # of nearly equal size, because a single sample has no statistics
        rows = slice(batch * len(samples) // batches, (batch + 1) * len(samples) // batches)
        raw_x, raw_y = (torch.from_numpy(values).to(model.device) for values in samples.take(rows))
        yield task.batch(raw_x, raw_y)
