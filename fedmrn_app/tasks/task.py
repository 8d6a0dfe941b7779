"""What is learned: where the rows come from, what a batch of them is, the loss and the metrics. One file per task.

A task is a frozen dataclass; its fields are the keys of `conf/dataset/*.yaml`, checked by their annotations. Which task
a data set is for is said by its key `task`, the `kind` of a class in this package. A task of one's own, anywhere, is
named by `task=own task._target_=package.module.Class`, and its fields are set by `task.KEY=VALUE`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedmrn_app.data.samples import Column, Rows, Samples
from fedmrn_app.errors import DataError

__all__ = ["Column", "Report", "Rows", "Samples", "Split", "Task"]

Split = Literal["train", "test"]
Report = Callable[[str], None]  # is told in one line of what takes long


@dataclass(frozen=True)
class Task(ABC):
    """What a run learns, by default to classify: cross-entropy, accuracy."""

    kind: ClassVar[str]  # what conf/dataset/*.yaml call it
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)  # what `read` returns; the first is the headline, more is better

    name: str = "own"  # of the data set

    @abstractmethod
    def load(self, split: Split, report: Report | None = None) -> Samples:
        """Return one split, mapped read-only where it is large; `report` is told if that takes long.

        Raises:
            DataError: the source cannot be reached, or does not hold what the configuration says.
        """

    @abstractmethod
    def inputs(self) -> Mapping[str, Any]:
        """What the data say about a model, by the names of a model's parameters, such as `channels` and `classes`.

        A model is given those that its signature names.
        """

    @abstractmethod
    def example(self, count: int) -> Tensor:
        """Made-up inputs (count, ...) as `batch` gives them, to see whether a model takes them."""

    @abstractmethod
    def batch(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Turn stored rows (b, ...), already on the device, into what the model and the loss take.

        Args:
            x: inputs as they are stored.
            y: targets likewise.
            generator: draws the augmentation, on the CPU; None where there is to be none.
        """

    def measured(self, report: Report | None = None) -> Task:
        """The same task with whatever was left to be read from the data: shapes, classes, normalisation."""
        return self

    def local(self, path: str) -> Task:
        """The same task on a device's own rows at `path`; they must fit what was measured, which `load` checks.

        Raises:
            DataError: the task has no form in which a device could keep its own rows.
        """
        raise DataError(f"data-path={path}: {self.name} cannot be trained on a device's own files")

    def model_name(self) -> str | None:
        """The file in conf/model/ that `model=default` stands for; None where the task has none."""
        return None

    def check_outputs(self, outputs: Any, count: int) -> str | None:
        """Why a model's outputs for `count` examples in evaluation are not what the loss takes, or None."""
        classes = self.inputs().get("classes")
        if not isinstance(outputs, Tensor) or outputs.shape[0] != count or outputs.dim() < 2:
            return f"gives {_shape(outputs)} for {count} samples, not ({count}, {classes})"
        if classes is not None and outputs.shape[1] != classes:
            return f"gives {outputs.shape[1]} outputs for each sample where the data have {classes} classes"
        return None

    def loss(self, outputs: Any, y: Tensor) -> Tensor:
        """Mean loss of a batch; `outputs` is what the model returns, in training mode or not."""
        return functional.cross_entropy(outputs, y)

    def tally(self, outputs: Any, y: Tensor) -> Tensor:
        """What is counted of a batch in evaluation; the sum over all batches is what `read` gets."""
        correct = (outputs.argmax(1) == y).sum()
        return torch.stack([correct, torch.full_like(correct, y.numel())])

    def read(self, tally: NDArray[Any]) -> dict[str, float]:
        """The metrics, by their names, from the sum of all tallies."""
        return {"accuracy": float(tally[0]) / float(tally[1])}


def _shape(outputs: Any) -> str:
    return str(tuple(outputs.shape)) if isinstance(outputs, Tensor) else type(outputs).__name__
