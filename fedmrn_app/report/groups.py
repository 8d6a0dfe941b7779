"""Groups of finished runs that differ only in their seed: a row of a table, a line of a figure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedmrn_app.errors import RunError
from fedmrn_app.report.published import published
from fedmrn_app.report.run_names import name_runs
from fedmrn_app.report.runs import Run, read_run

Floats = NDArray[np.float64]

_NAMED_SETTINGS = 4  # at most, in a name


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that differ only in their seed. Arrays have a row for each run and, where given, a column for each round.

    Attributes:
        runs: the runs in the order of their seeds, at least one.
        settings: the settings that distinguish the group, see `name_runs`.
        common: the values that most groups have for these settings.
        summaries: the summaries, a row for each run.
        rounds: the rounds, with `run` and `round` as index; as many rounds as the shortest run has. Beside the columns
            of rounds.csv, `up_mb` and `total_mb` are the traffic of all clients up to and including the round.
    """

    runs: Sequence[Run]
    settings: Mapping[str, str]
    common: Mapping[str, str]
    summaries: pd.DataFrame
    rounds: pd.DataFrame

    @property
    def name(self) -> str:
        """The strategy, and the first settings that distinguish the group and are not common; equal on all data."""
        return self.name_without()

    @property
    def label(self) -> str:
        """The name, with a mark if a remark was kept with a run; see `fedmrn_app/report/notes.py`."""
        return self.marked(self.name)

    def marked(self, name: str) -> str:
        """Return a name with a mark if a remark was kept with a run."""
        return f"{name} †" if any(run.remark for run in self.runs) else name

    @property
    def seeds(self) -> list[int]:
        """The seed of each run, in order; runs may repeat one."""
        return [seed_of(run) for run in self.runs]

    def name_without(self, *left_out: str) -> str:
        """Return the name without some settings."""
        words = [
            f"{key}={value}"
            for key, value in self.settings.items()
            if key not in left_out and self.common.get(key) != value
        ]
        more = ["..."] if len(words) > _NAMED_SETTINGS else []
        return " ".join([self.strategy, *words[:_NAMED_SETTINGS], *more])

    def fact(self, key: str, default: Any = None) -> Any:
        """Return a value that the summaries of all runs share."""
        return self.runs[0].summary.get(key, default)

    @property
    def strategy(self) -> str:
        """The method's name."""
        return self.runs[0].strategy

    @property
    def data(self) -> str:
        """The data in words, see `data_of`."""
        return self.runs[0].data

    @property
    def metric(self) -> str:
        """The headline metric."""
        return str(self.fact("metric"))

    @property
    def split(self) -> str:
        """The split that was evaluated: `test` or `validation`."""
        return str(self.fact("evaluated_on", "test"))

    @property
    def least_rounds(self) -> int:
        """The number of rounds of the shortest run."""
        return int(self.summary("rounds").min())

    @property
    def published(self) -> float | None:
        """The paper's result on the test split in percent, see `published`."""
        if self.split != "test":
            return None
        return published(self.strategy, self.fact("dataset"), self.fact("partition"), self.least_rounds)

    def summary(self, key: str) -> Floats:
        """Return a value of the summary, shape (runs,)."""
        values: Floats = self.summaries[key].to_numpy(float)
        return values

    def curve(self, key: str) -> Floats:
        """Return a column of the rounds, shape (runs, rounds); NaN where a run of an older version lacks the column."""
        if key not in self.rounds:
            return np.full((len(self.runs), self.rounds.index.levshape[1]), np.nan)
        values: Floats = np.ascontiguousarray(self.rounds[key].unstack("round"), np.float64)
        return values

    def trailing(self, key: str, last: int) -> Floats:
        """Return a column's mean over each round and up to `last - 1` rounds before it, shape (runs, rounds)."""
        values = self.curve(key)
        return np.stack([values[:, max(0, end - last) : end].mean(1) for end in range(1, values.shape[1] + 1)], 1)

    def final(self, last: int) -> Floats:
        """Return the mean of the headline metric over each run's last rounds, shape (runs,).

        Raises:
            RunError: a run has fewer rounds.
        """
        for run in self.runs:
            if len(run.rounds) < last:
                message = f"--last {last}: {run.folder} has {len(run.rounds)} rounds"
                raise RunError(message, code="too-few-rounds", key="--last", value=last)
        return np.array([run.rounds[self.metric].to_numpy()[-last:].mean() for run in self.runs])


def read_groups(summaries: Sequence[Path], rounds: int | None = None) -> list[Group]:
    """Read the runs that summaries belong to and group them, in the order of the first run of each group.

    Args:
        summaries: paths of the runs' summary.json.
        rounds: number of rounds to read of each run, all by default; see `begin_of`.

    Raises:
        RunError: a file of a run cannot be read, or a run has fewer rounds.
    """
    runs = pd.Series([read_run(path, rounds) for path in summaries], dtype=object)
    alike = [json.dumps([run.strategy, run.naming_settings], sort_keys=True, default=str) for run in runs]
    groups = [sorted(found, key=seed_of) for _, found in runs.groupby(alike, sort=False)]
    names = name_runs([group[0] for group in groups])
    return [_group(group, settings, common) for group, (settings, common) in zip(groups, names, strict=True)]


def seed_of(run: Run) -> int:
    """Return the seed of a run."""
    return int(run.settings.get("seed", 0))


def _group(runs: Sequence[Run], settings: Mapping[str, str], common: Mapping[str, str]) -> Group:
    shortest = min(len(run.rounds) for run in runs)
    rounds = pd.concat([_with_traffic(run.rounds.head(shortest)) for run in runs], keys=range(len(runs)))
    rounds.index.names = ["run", "round"]
    summaries = pd.DataFrame([run.summary for run in runs])
    return Group(runs=runs, settings=settings, common=common, summaries=summaries, rounds=rounds)


def _with_traffic(rounds: pd.DataFrame) -> pd.DataFrame:
    """Add the traffic of all clients in MB; failed clients are sent the model but do not count as uplink."""
    up = rounds["uplink_bytes"].fillna(0) * rounds["clients_ok"]
    down = rounds["downlink_bytes"].fillna(0) * (rounds["clients_ok"] + rounds["clients_failed"])
    return rounds.assign(up_mb=up.cumsum() / 1e6, total_mb=(up + down).cumsum() / 1e6)


def metric_of(groups: Sequence[Group]) -> str:
    """Return the headline metric in words, or `metric` where the groups have different ones."""
    names = {group.metric.replace("_", " ") for group in groups}
    return names.pop() if len(names) == 1 else "metric"


def final_of(groups: Sequence[Group], last: int) -> str:
    """Return the name of what `Group.final` returns."""
    name = metric_of(groups)
    return f"final {name}" if last == 1 else f"{name} of the last {last} rounds"
