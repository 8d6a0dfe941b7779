"""Accuracy and loss of a model on labelled images."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from fedmrn_app.learning.batches import Images, normalise
from fedmrn_app.learning.flat import FlatModel

_BATCH = 200  # the memory of larger activations goes back to the system after each batch
_WHOLE_BATCH = 500


@torch.inference_mode()
def evaluate(model: FlatModel, images: Images) -> tuple[float, float]:
    """Return (accuracy in [0, 1], mean cross-entropy) of the model, in evaluation mode and float32.

    A model that normalises by the statistics of the batch at hand gets larger batches.
    """
    model.module.eval()
    by_batch = any(isinstance(m, nn.BatchNorm2d) and not m.track_running_stats for m in model.module.modules())
    batch_size = _WHOLE_BATCH if by_batch or model.device.type != "cpu" else _BATCH
    correct = torch.zeros((), dtype=torch.int64, device=model.device)
    loss = torch.zeros((), dtype=torch.float64, device=model.device)
    batches = -(-len(images) // batch_size)
    for batch in range(batches):  # of nearly equal size: there are no statistics of a single image
        rows = slice(batch * len(images) // batches, (batch + 1) * len(images) // batches)
        # copied: the arrays are mapped read-only files
        pixels = torch.from_numpy(images.pixels[rows].copy()).to(model.device)
        y = torch.from_numpy(images.labels[rows].copy()).to(model.device)
        x = normalise(pixels, images.mean, images.std).contiguous(memory_format=torch.channels_last)
        logits = model.module(x)
        correct += (logits.argmax(1) == y).sum()
        loss += functional.cross_entropy(logits, y, reduction="sum")
    return int(correct) / len(images), float(loss) / len(images)
