"""What clients found out on the rows that they hold out: the columns of rounds.csv, and evaluation.csv per client."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmrn_app.federation.tallies import Evaluated, NoisyTally, Tally
from fedmrn_app.tasks.task import Task

_WORST = 10  # the worst of so many clients, at least one


@dataclass(frozen=True)
class ClientMetrics:
    """The metrics of one model on clients' rows.

    Attributes:
        metrics: on all rows together, by name; NaN without rows.
        loss: mean loss on all rows.
        each: metrics, loss and number of rows of each client with rows; empty with secure sums and with noise.
        columns: values of `Round` beside `metrics` and `loss`.
    """

    metrics: Mapping[str, float]
    loss: float
    each: Mapping[int, Mapping[str, float]]
    columns: Mapping[str, float]

    @classmethod
    def of(cls, task: Task, evaluated: Evaluated | None) -> ClientMetrics:
        """Return the metrics of tallies; None stands for an evaluation without a usable reply."""
        if evaluated is None:
            return cls(dict.fromkeys(task.metrics, math.nan), math.nan, {}, {"clients_evaluated": 0.0})
        metrics, loss = _read(task, evaluated.total)
        each: dict[int, dict[str, float]] = {}
        for client, tally in evaluated.tallies.items():
            if tally.rows:
                own, own_loss = _read(task, tally)
                each[client] = {"rows": tally.rows, **own, "loss": own_loss}
        found = (one[task.metrics[0]] for one in each.values())
        headlines = sorted((value for value in found if not math.isnan(value)), key=lambda value: task.sign() * value)
        worst = headlines[: math.ceil(len(headlines) / _WORST)]
        columns = {
            "clients_headline": metrics[task.metrics[0]],
            "mean_headline": _mean(headlines),
            "worst_headline": _mean(worst),
            "clients_loss": loss,
            "clients_evaluated": float(len(evaluated.tallies) or len(evaluated.uplink)),
            "evaluation_uplink_bytes": _mean(evaluated.uplink),
            "evaluation_downlink_bytes": _mean(evaluated.downlink),
        }
        return cls(metrics, loss, each, columns)


def _read(task: Task, tally: Tally | NoisyTally) -> tuple[dict[str, float], float]:
    if tally.rows <= 0:
        return dict.fromkeys(task.metrics, math.nan), math.nan
    with np.errstate(divide="ignore", invalid="ignore"):
        try:
            return task.read(tally.counts), tally.loss / tally.rows
        except (ZeroDivisionError, ValueError):  # a client may state rows without counts, and noise less than none
            return dict.fromkeys(task.metrics, math.nan), tally.loss / tally.rows


class EvaluationFile:
    """Writes evaluation.csv, a row for each round and client."""

    def __init__(
        self, folder: Path, done: int, metrics: Sequence[str], name: Callable[[int], str] = "client {}".format
    ) -> None:
        """Open a run's file and remove the rows of rounds after `done`, which are repeated.

        Args:
            folder: the run's folder.
            done: number of finished rounds.
            metrics: names of the task's metrics.
            name: returns the name of a client's device.
        """
        self._path, self._name = folder / "evaluation.csv", name
        self._columns = ["round", "client", "device", "rows", *metrics, "loss"]
        rows: list[Any] = []
        if done and self._path.is_file():
            with self._path.open(newline="") as file:
                rows = [row for row in csv.reader(file) if row and row[0].isdigit() and int(row[0]) <= done]
        with self._path.open("w", newline="") as file:
            csv.writer(file).writerows([self._columns, *rows])
        self.last: dict[str, Mapping[str, float]] = {}

    def note(self, number: int, each: Mapping[int, Mapping[str, float]]) -> None:
        """Add the rows of a round.

        Args:
            number: of the round.
            each: as `ClientMetrics.each`.
        """
        self.last = {self._name(client): values for client, values in each.items()} or self.last
        with self._path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self._columns)
            for client, values in each.items():
                writer.writerow({"round": number, "client": client, "device": self._name(client), **values})


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan
