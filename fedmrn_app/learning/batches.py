"""Batches of one client's samples for local training."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from fedmrn_app.tasks.task import Samples, Task


class Batches:
    """An iterable of batches (x, y) as the task prepares them, whose order and augmentation a seed fixes.

    `len` is the number of local steps S. A last batch of one sample joins the batch before it, because batch norm
    cannot train on one sample.
    """

    def __init__(
        self,
        task: Task,
        samples: Samples,
        *,
        batch_size: int,
        epochs: int,
        seed: int,
        steps: int | None = None,
        device: torch.device | str = "cpu",
        absent: float | None = None,
    ) -> None:
        """Cut samples into batches.

        Args:
            task: prepares the batches, and defines their loss.
            samples: the client's samples.
            batch_size: samples of a batch.
            epochs: passes over the samples.
            seed: of the order of each pass, and of the augmentation.
            steps: number of batches, in as many passes as they need, instead of `epochs`.
            device: where the batches are.
            absent: logit in the loss of every label of which there is no sample; None to keep the model's logit.
        """
        self.task, self._samples, self._seed, self._device = task, samples, seed, torch.device(device)
        starts = list(range(0, len(samples), batch_size))
        if len(starts) > 1 and len(samples) - starts[-1] == 1:
            starts.pop()
        self._bounds = list(zip(starts, [*starts[1:], len(samples)], strict=True))
        self._absent = absent
        self._labels = None if absent is None else torch.from_numpy(self.labels()).to(self._device)
        self._steps = epochs * len(self._bounds) if steps is None else steps

    def __len__(self) -> int:
        return self._steps

    @property
    def masks_labels(self) -> bool:
        """Whether the loss depends on which labels the client has."""
        return self._labels is not None

    def labels(self) -> NDArray[Any]:
        """Return the labels of which there are samples, ascending."""
        return np.unique(np.asarray(self._samples.y))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return islice(self._endless(), self._steps)

    def loss(self, outputs: Any, y: Tensor) -> Tensor:
        """Return the task's mean loss of a batch."""
        if self._labels is not None and self._absent is not None:
            absent = torch.ones(outputs.shape[1], dtype=torch.bool, device=outputs.device)
            absent[self._labels] = False
            outputs = outputs.masked_fill(absent, self._absent)
        return self.task.loss(outputs, y)

    def one_pass(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the batches of the first pass over all samples, for any number of steps."""
        return islice(self._endless(), len(self._bounds))

    def _endless(self) -> Iterator[tuple[Tensor, Tensor]]:
        x = torch.from_numpy(np.asarray(self._samples.x)).to(self._device)
        y = torch.from_numpy(np.asarray(self._samples.y)).to(self._device)
        generator = torch.Generator().manual_seed(self._seed)
        while True:
            order = torch.randperm(len(y), generator=generator).to(self._device)
            for start, end in self._bounds:
                rows = order[start:end]
                yield self.task.batch(x[rows], y[rows], generator)
