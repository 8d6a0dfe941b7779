"""The interface of a task: where the rows come from, what a batch of them is, the loss and the metrics.

A task is a frozen dataclass. Its fields are the keys of `conf/dataset/*.yaml`, checked by their annotations. The key
`task` of a data set is the `kind` of a class in this package, which has one file per task. Any other class is named by
`task=own task._target_=package.module.Class`, and its fields are set by `task.KEY=VALUE`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedmrn_app.data.samples import Column, Report, Rows, Samples, Split
from fedmrn_app.data.summary import DataSummary, SplitRows
from fedmrn_app.errors import DataError

__all__ = ["Column", "Report", "Rows", "Samples", "Split", "Task"]

T = TypeVar("T", bound="Task")


@dataclass(frozen=True)
class Task(ABC):
    """What a run learns; by default classification with cross-entropy and accuracy."""

    kind: ClassVar[str]  # its name in conf/dataset/*.yaml
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)  # what `read` returns; the first is the headline
    less_is_better: ClassVar[tuple[str, ...]] = ()  # those of them that are better the smaller they are, such as rmse
    splits: ClassVar[tuple[Split, ...]] = ("train", "test")  # what `load` takes
    path_key: ClassVar[str] = "dataset.path"  # what errors call the path of the rows

    name: str = "own"  # of the data set

    @abstractmethod
    def load(self, split: Split, report: Report | None = None) -> Samples:
        """Return one split, mapped read-only where it is large; `report` receives a line if that takes long.

        Raises:
            DataError: the source cannot be reached, or does not hold what the configuration says.
        """

    def describe(self, report: Report | None = None) -> DataSummary:
        """Return what the rows are and what becomes of them, after `measured`; by default what their splits tell.

        Raises:
            DataError: as `load`.
        """
        uses: dict[Split, str] = {"train": "training", "test": "evaluation"}
        splits = [SplitRows(split, len(self.load(split, report)), use, {}) for split, use in uses.items()]
        return DataSummary(f"dataset={self.name}", getattr(self, "kind", "rows of a task of your own"), (), splits)

    @abstractmethod
    def inputs(self) -> Mapping[str, Any]:
        """Return what the data determine about a model, such as `channels` and `classes`.

        The keys are names of parameters. A model receives those that its signature names.
        """

    @abstractmethod
    def example(self, count: int) -> Tensor:
        """Return artificial inputs (count, ...) in the form that `batch` gives, to check whether a model takes them."""

    @abstractmethod
    def batch(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Turn stored rows (b, ...), already on the device, into what the model and the loss take.

        Args:
            x: the inputs as they are stored.
            y: the targets as they are stored.
            generator: draws the augmentation, on the CPU; None for no augmentation.
        """

    def measured(self, report: Report | None = None) -> Task:
        """Return the same task with everything that is read from the data: shapes, classes, normalization."""
        return self

    def local(self, path: str) -> Task:
        """Return the same task on a device's own rows at `path`; `load` checks that they fit what was measured.

        Raises:
            DataError: the task does not support own rows of a device.
        """
        problem = f"{self.name} cannot be trained on a device's own files"
        raise DataError(f"data-path={path}: {problem}", code="device", key="data-path", value=path)

    def model_name(self) -> str | None:
        """Return the file in conf/model/ that `model=default` stands for, or None."""
        return None

    def model_options(self) -> Mapping[str, Any]:
        """Return the keys of that file for which the data have other values than it."""
        return {}

    def has_groups(self) -> bool:
        """Return whether `partition=default` is `natural`, because the configuration names groups of the rows."""
        return False

    def check_outputs(self, outputs: Any, count: int) -> str | None:
        """Return why a model's outputs for `count` examples in evaluation are not what the loss takes, or None."""
        classes = self.inputs().get("classes")
        if not isinstance(outputs, Tensor) or outputs.shape[0] != count or outputs.dim() < 2:
            return f"gives {shape_of(outputs)} for {count} samples, not ({count}, {classes})"
        if classes is not None and outputs.shape[1] != classes:
            return f"gives {outputs.shape[1]} outputs for each sample where the data have {classes} classes"
        return None

    def check_training(self, outputs: Any, count: int) -> str | None:
        """Return why a model's outputs in training mode are not what the loss takes, or None; a loss may take any."""
        return None

    def loss(self, outputs: Any, y: Tensor) -> Tensor:
        """Return the mean loss of a batch; `outputs` is what the model returns, in training mode or in evaluation."""
        return functional.cross_entropy(outputs, y)

    def own_test_rows(self) -> Samples | None:
        """Return the test split that a device has brought with its own rows; None where it has brought none.

        Raises:
            DataError: the split cannot be read, or does not fit the run.
        """
        return None

    def own_columns(self) -> str | None:
        """Return a checksum of a device's columns, where the run does not say which columns are inputs.

        The checksum covers the names in their order and the categories. None where the run names the columns, or the
        rows have no columns with names.

        Raises:
            DataError: the rows cannot be read.
        """
        return None

    def constant_score(self, samples: Samples) -> float | None:
        """Return the headline metric of the best answer that is the same for all samples; None if it is not known."""
        return None

    @classmethod
    def sign(cls) -> float:
        """Return 1 where more of the headline metric is better, and -1 where less is."""
        return -1.0 if cls.metrics[0] in cls.less_is_better else 1.0

    @property
    def tally_shape(self) -> tuple[int, ...]:
        """The shape of the counts that `tally` returns, which the server needs where clients evaluate."""
        return (2,)

    def tally(self, outputs: Any, y: Tensor) -> Tensor:
        """Return the counts of a batch in evaluation; `read` gets their sum over all batches."""
        correct = (outputs.argmax(1) == y).sum()
        return torch.stack([correct, torch.full_like(correct, y.numel())])

    def read(self, tally: NDArray[Any]) -> dict[str, float]:
        """Return the metrics by name from the sum of all tallies."""
        return {"accuracy": float(tally[0]) / float(tally[1])}


def convert(task: Task, kind: type[T], **changes: Any) -> T:
    """Return a task of a subclass with the same fields, except for the changes."""
    return kind(**{field.name: getattr(task, field.name) for field in fields(task)} | changes)


def largest_share(labels: NDArray[Any]) -> float:
    """Return the share of the most frequent of some labels (n,), integers from 0."""
    return float(np.bincount(labels).max() / len(labels))


def shape_of(outputs: Any) -> str:
    """Return the shape of a tensor, or the name of another object's class."""
    return str(tuple(outputs.shape)) if isinstance(outputs, Tensor) else type(outputs).__name__
