"""The rows of rounds.csv, a column for each field of `Round`."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Round:
    """One finished round. Values of clients are means over the usable replies, NaN where a round has none.

    Attributes:
        round: number of the round, from 1.
        metrics: of the global model on the test split, by name; the first is the headline. With `evaluation.on=clients`
            they are those on the rows that clients hold out. NaN in rounds that are not evaluated.
        sampled: the headline metric of a model drawn from the global distribution, for methods that keep one (FedPM).
        averaged: the headline metric of the mean of the last `evaluation.average` global models, or of all so far
            where they are fewer; NaN without it, and in the first rounds after a run has resumed.
        loss: of the global model on the test split.
        train_loss: loss of local training.
        loss_gap: loss of the global model on the train split less that on the test split, with `evaluation.train`.
        headline_gap: the same difference of the headline metric.
        uplink_bytes: bytes of all whole replies that the server read, usable and rejected, divided by the number of
            usable ones, so that this times `clients_ok` is the traffic of the round.
        uplink_bits_per_parameter: the same in bits, divided by the number of trained parameters.
        downlink_bytes: bytes of the content sent to a client.
        downlink_bits_per_parameter: the same in bits, divided by the number of trained parameters.
        total_bits_per_parameter: sum of both directions, with the traffic of a client that evaluates.
        clients_ok: number of usable replies.
        clients_failed: number of clients rejected.
        train_seconds: local training of a client.
        compress_seconds: time from a client's trained update to its body.
        decode_seconds: the server's time to check, decode and add one reply.
        seconds: the whole round, evaluation included.
        epsilon: privacy spent by all rounds so far, NaN where no noise is added.
        model_rate: share of the model's channels or weights that a client is assigned, its capacity.
        held_share: share of all weights that a client holds.
        clients_headline: the headline metric on all rows that clients hold out, NaN where none has evaluated.
        mean_headline: its mean over clients, NaN where the server does not know that of each client.
        worst_headline: its mean over the worst tenth of the clients, at least one; NaN likewise.
        clients_loss: mean loss on these rows.
        clients_evaluated: number of clients that have evaluated; NaN where none was asked.
        evaluation_uplink_bytes: bytes of the replies of a client that was asked to evaluate.
        evaluation_downlink_bytes: bytes sent to it.
        budget_left: bits per parameter that `uplink.budget` leaves for all rounds to come, NaN without one.
    """

    round: int
    metrics: Mapping[str, float]
    sampled: float
    loss: float
    train_loss: float
    loss_gap: float
    headline_gap: float
    uplink_bytes: float
    uplink_bits_per_parameter: float
    downlink_bytes: float
    downlink_bits_per_parameter: float
    total_bits_per_parameter: float
    clients_ok: int
    clients_failed: int
    train_seconds: float
    compress_seconds: float
    decode_seconds: float
    seconds: float
    epsilon: float = math.nan
    model_rate: float = math.nan
    held_share: float = math.nan
    budget_left: float = math.nan
    averaged: float = math.nan
    clients_headline: float = math.nan
    mean_headline: float = math.nan
    worst_headline: float = math.nan
    clients_loss: float = math.nan
    clients_evaluated: float = math.nan
    evaluation_uplink_bytes: float = math.nan
    evaluation_downlink_bytes: float = math.nan

    @property
    def headline(self) -> float:
        """The first metric."""
        return next(iter(self.metrics.values()))


def _columns_of_fields(headline: str) -> dict[str, str]:
    """Return the column of each field except `metrics`."""
    renamed = {which: f"{which}_{headline}" for which in ("sampled", "averaged")} | {"headline_gap": f"{headline}_gap"}
    renamed |= {f"{whose}_headline": f"{whose}_{headline}" for whose in ("clients", "mean", "worst")}
    return {field.name: renamed.get(field.name, field.name) for field in fields(Round) if field.name != "metrics"}


def columns(metrics: Sequence[str]) -> list[str]:
    """Return the columns of rounds.csv for a task's metrics, headline first."""
    number, sampled, *others = _columns_of_fields(metrics[0]).values()
    return [number, metrics[0], sampled, *metrics[1:], *others]


def to_row(entry: Round) -> dict[str, float]:
    """Return the values of a round by their columns."""
    names = _columns_of_fields(next(iter(entry.metrics)))
    return {**entry.metrics, **{column: getattr(entry, name) for name, column in names.items()}}


def from_row(row: Mapping[str, str], metrics: Sequence[str]) -> Round:
    """Return the round of a row of text; columns that an older version did not write are NaN."""
    names = _columns_of_fields(metrics[0])
    values = {
        field.name: {"int": int, "float": float}[str(field.type)](row.get(names[field.name], "nan"))
        for field in fields(Round)
        if field.name != "metrics"
    }
    return Round(metrics={name: float(row[name]) for name in metrics}, **values)


class RowReader:
    """Reads the rows that another process appends to rounds.csv, each row once."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "rounds.csv"
        self._file = (0, 0)  # device and inode: a run that resumes replaces the file
        self._offset = 0
        self._columns: list[str] = []
        self._last = 0  # number of the last round that was read

    def read(self) -> Iterator[dict[str, float]]:
        """Yield the complete rows that are new, by columns; rounds that were read before are left out."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            if (status.st_dev, status.st_ino) != self._file or status.st_size < self._offset:
                self._file, self._offset = (status.st_dev, status.st_ino), 0
            file.seek(self._offset)
            complete = file.read().rpartition(b"\n")[0]
        lines = list(csv.reader(complete.decode().splitlines()))
        if complete and self._offset == 0:
            self._columns = lines.pop(0)
        self._offset += len(complete) + 1 if complete else 0
        for line in lines:
            row = dict(zip(self._columns, map(float, line), strict=True))
            if row["round"] > self._last:
                self._last = int(row["round"])
                yield row
