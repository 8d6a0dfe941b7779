"""Training rows that are held out, to judge settings by them and leave the test split unseen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import ConfigError
from fedmrn_app.seeds import derive_seed
from fedmrn_app.tasks.task import Column, Report, Rows, Samples, Task


@dataclass(frozen=True)
class _Part:
    """Some rows of a column, read when they are asked for."""

    column: Column
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Any, /) -> NDArray[Any]:
        return self.column[self.rows[rows]]


def load_training(task: Task, share: float | None, run_seed: int, report: Report | None = None) -> Samples:
    """The rows that clients train on: the training split without what is held out.

    Args:
        task: what is learned.
        share: of the training rows that is held out; None for nothing.
        run_seed: of the run, which draws them.
        report: is told in a line if reading takes long.

    Raises:
        ConfigError: the share is of so few rows that nothing would be held out, or nothing left.
        DataError: the data cannot be read.
    """
    samples = task.load("train", report)
    return samples if share is None else _part(samples, ~_held_out(samples, share, run_seed))


def load_evaluation(task: Task, share: float | None, run_seed: int, report: Report | None = None) -> Samples:
    """The rows that the global model is evaluated on: the test split, or in its place what is held out.

    See `load_training`.
    """
    if share is None:
        return task.load("test", report)
    samples = task.load("train", report)
    return _part(samples, _held_out(samples, share, run_seed))


def _held_out(samples: Samples, share: float, run_seed: int) -> NDArray[np.bool_]:
    """Which rows are held out, bool (n,): any by chance, or the last of each natural group, whose rows may overlap."""
    count = len(samples)
    held = np.zeros(count, bool)
    if samples.groups is None:
        random = np.random.default_rng(derive_seed(run_seed, "validation"))
        held[random.permutation(count)[: int(share * count)]] = True
    else:
        order = np.argsort(samples.groups, kind="stable")
        sizes = np.bincount(samples.groups)
        ends = np.repeat(np.cumsum(sizes), sizes)
        kept = np.repeat((share * sizes).astype(np.int64), sizes)
        held[order[np.arange(count) >= ends - kept]] = True
    if not held.any() or held.all():
        raise ConfigError(f"validation={share:g}: of {count} training rows, {held.sum()} would be held out")
    return held


def _part(samples: Samples, chosen: NDArray[np.bool_]) -> Samples:
    rows = np.flatnonzero(chosen)
    labels, groups = (None if of is None else of[rows] for of in (samples.labels, samples.groups))
    return Samples(_Part(samples.x, rows), _Part(samples.y, rows), labels, groups)
