"""The time that each method of a benchmark takes to reach a value of the metric, on lines of several speeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedmrn_app.errors import RunError
from fedmrn_app.report.benchmark import Cell, cells_of
from fedmrn_app.report.groups import Floats, factor_of, joined, marks_of, metric_of
from fedmrn_app.report.notes import TIMES, remarks
from fedmrn_app.report.registration import Registration
from fedmrn_app.report.tables import markdown
from fedmrn_app.report.traffic import DOWN_SPEED, seconds_of_rounds
from fedmrn_app.results.summary import LESS

LINES = (1.0, 10.0, 100.0)  # Mbit/s of a client's uplink
WINDOW = 5  # rounds whose mean must reach the target, so that one lucky round does not count
_UNITS = {"hours": 3600.0, "minutes": 60.0}  # in seconds
_NONE = "not in all"  # instead of a time where a seed does not reach the target


@dataclass(frozen=True)
class Time:
    """When the runs of a row reach the target of a partition.

    Attributes:
        cell: the row on the partition.
        target: value of the headline metric.
        rounds: number of rounds of each run up to the target, shape (runs,); NaN for a run that does not reach it.
        seconds: of each run up to the target on each line, shape (lines, runs); NaN likewise.
    """

    cell: Cell
    target: float
    rounds: Floats
    seconds: Floats


def times_of(
    registration: Registration, runs: pd.DataFrame, lines: Sequence[float] = LINES, train: float | None = None
) -> list[Time]:
    """Return when the rows with runs reach the targets, by partition and row in the order of the registration.

    A target is reached in the first round in which the mean of the metric over this round and up to four before it is
    as good.

    Args:
        registration: the benchmark; partitions without a target are left out.
        runs: rows of `load_runs`.
        lines: speeds of a client's uplink in Mbit/s; the downlink is ten times as fast.
        train: seconds of local training per client and round; None for those that each run measured.

    Raises:
        RunError: the runs do not fit the registration, or it has no target.
    """
    if all(place.target is None for place in registration.partitions.values()):
        message = f"--time: no partition of '{registration.title}' has a target, such as target: 0.85"
        raise RunError(message, code="no-target", key="--time", value=registration.title)
    cells = cells_of(registration, runs).values()
    return [
        Time(cell, target, *_until(cell, target, lines, train))
        for cell in cells
        if (target := registration.partitions[cell.partition].target) is not None and len(cell.runs)
    ]


def _until(cell: Cell, target: float, lines: Sequence[float], train: float | None) -> tuple[Floats, Floats]:
    sign = -1.0 if cell.runs[LESS].any() else 1.0
    seconds = pd.DataFrame({line: seconds_of_rounds(cell.rounds, line, train) for line in lines})
    rounds, total = [], []
    for folder in cell.runs.index:
        reached = cell.rounds.loc[folder, "headline"].rolling(WINDOW, min_periods=1).mean()
        where = np.flatnonzero(sign * reached.to_numpy() >= sign * target)
        rounds.append(float(where[0] + 1) if len(where) else np.nan)
        own = seconds.loc[folder].to_numpy()
        total.append(own[: where[0] + 1].sum(0) if len(where) else np.full(len(lines), np.nan))
    return np.array(rounds), np.array(total).T


def table_of_times(
    registration: Registration, runs: pd.DataFrame, lines: Sequence[float] = LINES, train: float | None = None
) -> list[str]:
    """Return the lines of the table of times, and what they mean; the arguments and errors are those of `times_of`."""
    times = times_of(registration, runs, lines, train)
    unit = unit_of(times)
    head = ["method", "partition", "until", "seeds", "rounds", *(f"{unit} at {line:g} Mbit/s" for line in lines)]
    shown = pd.concat([time.cell.runs for time in times])
    below = [_meaning(times, train), *remarks(shown, shown["run"])]
    rows = pd.DataFrame([_row(time, unit) for time in times], columns=head)
    return [*markdown(rows), *(line for note in below for line in ("", note))]


def unit_of(times: Sequence[Time]) -> str:
    """Return `hours` or `minutes`, whichever the longest time asks for."""
    longest = max((float(np.nanmax(time.seconds)) for time in times if np.isfinite(time.seconds).any()), default=0.0)
    return "hours" if longest >= 2 * _UNITS["hours"] else "minutes"


def in_unit(seconds: Floats, unit: str) -> Floats:
    """Return seconds in hours or minutes."""
    return seconds / _UNITS[unit]


def _row(time: Time, unit: str) -> list[str]:
    cell, reached = time.cell, time.cell.runs["seed"][~np.isnan(time.rounds)].nunique()
    factor = factor_of(cell.runs)
    until = f"{factor * time.target:g}{' %' if factor > 1 else ''}"
    seeds = str(cell.seeds) if reached == cell.seeds else f"{reached} of {cell.seeds}"
    return [f"{cell.name} {joined(marks_of(cell.runs))}".rstrip(), cell.partition, until, seeds, *_cells(time, unit)]


def _cells(time: Time, unit: str) -> Iterator[str]:
    for values, form in ((time.rounds, ".1f"), *((values, "#.3g") for values in in_unit(time.seconds, unit))):
        if np.isnan(values).any():
            yield _NONE
        else:
            each = time.cell.by_seed(pd.Series(values, time.cell.runs.index))
            yield f"{each.mean():{form}}" + (f" ({each.min():{form}} to {each.max():{form}})" if len(each) > 1 else "")


def _meaning(times: Sequence[Time], train: float | None) -> str:
    each = pd.concat([time.cell.rounds["train_seconds"] for time in times])
    own = f"the {each.mean():.2g} s per round that the machine of the runs took" if train is None else f"{train:g} s"
    metric = metric_of(pd.concat([time.cell.runs for time in times]))
    return (
        f"{TIMES}, with the lowest and the highest, until the mean {metric} of "
        f"{WINDOW} rounds reaches the value. Each client has a line of its own with this uplink and {DOWN_SPEED} times "
        f"that downlink; a round is the order and the reply at the socket (docs/traffic.md), local training of {own}, "
        f"compressing, and decoding all replies. The delay of a line and waiting for slower clients are left out."
    )
