"""Training rows that are held out: settings are chosen on them, and the test split stays unseen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import ConfigError
from fedmrn_app.seeds import derive_seed
from fedmrn_app.tasks.task import Column, Report, Rows, Samples, Task


@dataclass(frozen=True)
class _Subset:
    """Some rows of a column, read when they are asked for."""

    column: Column
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Any, /) -> NDArray[Any]:
        return self.column[self.rows[rows]]


HeldOut = float | Literal["val"] | None


def load_training(task: Task, share: HeldOut, run_seed: int, report: Report | None = None) -> Samples:
    """Return the rows that clients train on: the training split without the rows that are held out.

    Args:
        task: the task.
        share: share of the training rows that is held out; None for no rows, `val` for the data's own split.
        run_seed: seed of the run, which draws them.
        report: receives a line if reading takes long.

    Raises:
        ConfigError: the share would hold out no row, or every row.
        DataError: the data cannot be read.
    """
    samples = task.load("train", report)
    return samples if share is None or share == "val" else _subset(samples, ~_held_out(samples, share, run_seed))


def load_evaluation(task: Task, share: HeldOut, run_seed: int, report: Report | None = None) -> Samples:
    """Return the rows on which the global model is evaluated: the rows held out, or without any the test split.

    Arguments and errors are those of `load_training`.
    """
    if share is None:
        return task.load("test", report)
    if share == "val":
        if share not in task.splits:
            problem = f"{task.name} has no validation split; validation=0.1 holds out a tenth of the training rows"
            raise ConfigError(f"validation=val: {problem}", code="split", key="validation", value=share)
        return task.load(share, report)
    samples = task.load("train", report)
    return _subset(samples, _held_out(samples, share, run_seed))


def part_of(samples: Samples, count: int | None, run_seed: int) -> Samples:
    """Return `count` random rows in their order, or all rows where there are no more or `count` is None."""
    if count is None or count >= len(samples):
        return samples
    mask = np.zeros(len(samples), bool)
    mask[np.random.default_rng(derive_seed(run_seed, "validation", 1)).permutation(len(samples))[:count]] = True
    return _subset(samples, mask)


def _held_out(samples: Samples, share: float, run_seed: int) -> NDArray[np.bool_]:
    """Return a mask bool (n,) of random rows, or of the last rows of each natural group, whose rows may overlap."""
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
        problem = f"of {count} training rows, {held.sum()} would be held out"
        raise ConfigError(f"validation={share:g}: {problem}", code="range", key="validation", value=share)
    return held


def _subset(samples: Samples, mask: NDArray[np.bool_]) -> Samples:
    rows = np.flatnonzero(mask)
    labels, groups = (None if of is None else of[rows] for of in (samples.labels, samples.groups))
    return Samples(_Subset(samples.x, rows), _Subset(samples.y, rows), labels, groups)
