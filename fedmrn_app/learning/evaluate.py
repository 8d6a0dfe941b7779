"""Metrics and loss of a model on one split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.tasks.task import Samples, Task

_BATCH = 200  # the memory of larger activations goes back to the system after each batch
_WHOLE_BATCH = 500
_ELEMENTS = 400 * 3 * 32 * 32  # of the inputs of a batch, at most


@dataclass(frozen=True)
class Evaluation:
    """What a model reaches: the task's metrics by name, and its mean loss."""

    metrics: dict[str, float]
    loss: float

    @property
    def headline(self) -> float:
        """The first metric."""
        return next(iter(self.metrics.values()))


@torch.inference_mode()
def evaluate(model: FlatModel, task: Task, samples: Samples) -> Evaluation:
    """Evaluate in evaluation mode and float32; the loss is the mean over samples.

    A model that normalises by the statistics of the batch at hand gets larger batches.
    """
    model.module.eval()
    by_batch = any(isinstance(m, nn.BatchNorm2d) and not m.track_running_stats for m in model.module.modules())
    batch_size = _WHOLE_BATCH if by_batch or model.device.type != "cpu" else _BATCH
    size = int(np.prod(samples.take(slice(0, 1))[0].shape[1:]))
    batch_size = max(1, min(batch_size, _ELEMENTS // size))
    tally: Tensor | None = None
    loss = torch.zeros((), dtype=torch.float64, device=model.device)
    batches = -(-len(samples) // batch_size)
    for batch in range(batches):  # of nearly equal size: there are no statistics of a single sample
        rows = slice(batch * len(samples) // batches, (batch + 1) * len(samples) // batches)
        raw_x, raw_y = (torch.from_numpy(values).to(model.device) for values in samples.take(rows))
        x, y = task.batch(raw_x, raw_y)
        outputs = model.module(x)
        counted = task.tally(outputs, y)
        tally = counted if tally is None else tally + counted
        loss += task.loss(outputs, y) * len(y)
    if tally is None:
        raise ValueError("there are no samples to evaluate on")
    return Evaluation(task.read(tally.cpu().numpy()), float(loss) / len(samples))
