"""Finished runs put together: those that differ in their seed alone are one group, named by what it differs in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedmrn_app.errors import RunError
from fedmrn_app.report.published import published
from fedmrn_app.report.run_names import name_runs
from fedmrn_app.report.runs import Floats, Run, read_finished

_LONGEST = 4  # settings in a name
FOOTNOTE = "Where a name says nothing else: "  # its beginning


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone.

    Attributes:
        told: the settings by which groups are told apart, see `name_runs`.
        shared: those of them that most groups beside it have.
        runs: at least one, by their seeds.
    """

    told: Mapping[str, str]
    shared: Mapping[str, str]
    runs: Sequence[Run]

    @property
    def name(self) -> str:
        """The strategy, and the first few settings that tell and are not what most have; the same on all data."""
        return self.name_without()

    @property
    def data(self) -> str:
        """The data set and its partition, and the split that was evaluated on where it is not the test split."""
        return self.runs[0].data

    @property
    def strategy(self) -> str:
        """The method's name."""
        return self.runs[0].strategy

    @property
    def dataset(self) -> str:
        """The data set's name."""
        return str(self.runs[0].summary["dataset"])

    @property
    def partition(self) -> str:
        """The partition's name."""
        return str(self.runs[0].summary["partition"])

    @property
    def columns(self) -> set[str]:
        """The columns that the rounds of all runs have."""
        return set.intersection(*(set(run.columns) for run in self.runs))

    @property
    def split(self) -> str:
        """What was evaluated on: `test`, or `validation`."""
        return str(self.runs[0].summary.get("evaluated_on", "test"))

    @property
    def metric(self) -> str:
        """The headline metric."""
        return str(self.runs[0].summary["metric"])

    @property
    def published(self) -> float | None:
        """What the paper reports in percent, see `published`; of the test split."""
        if self.split != "test":
            return None
        return published(self.strategy, self.dataset, self.partition, self.rounds)

    @property
    def rounds(self) -> int:
        """Of the run that has the fewest."""
        return int(self.values("rounds").min())

    def values(self, key: str) -> Floats:
        """A value of the summary, of each run."""
        return np.array([run.summary[key] for run in self.runs], float)

    def curve(self, key: str) -> Floats:
        """A column of the rounds that all runs have, shape (runs, rounds)."""
        rounds = min(len(run.columns["round"]) for run in self.runs)
        return np.stack([run.columns[key][:rounds] for run in self.runs])

    def trailing(self, key: str, last: int) -> Floats:
        """A column's mean over each round and up to `last - 1` before it, shape (runs, rounds)."""
        values = self.curve(key)
        return np.stack([values[:, max(0, end - last) : end].mean(1) for end in range(1, values.shape[1] + 1)], 1)

    def late(self, last: int) -> Floats:
        """The headline metric of each run, mean over its last rounds.

        Raises:
            RunError: a run has fewer rounds.
        """
        for run in self.runs:
            if len(run.columns["round"]) < last:
                raise RunError(f"--last {last}: {run.folder} has {len(run.columns['round'])} rounds")
        return np.array([run.columns[self.metric][-last:].mean() for run in self.runs])

    def name_without(self, *left_out: str) -> str:
        """The name, but for some settings."""
        words = [
            f"{key}={value}"
            for key, value in self.told.items()
            if key not in left_out and self.shared.get(key) != value
        ]
        return " ".join([self.strategy, *words[:_LONGEST], *(["..."] if len(words) > _LONGEST else [])])

    def traffic(self, ways: Sequence[str]) -> Floats:
        """MB of all clients up to and including each round, in these ways, shape (runs, rounds)."""
        total = np.zeros_like(self.curve("round"))
        for way in ways:
            clients = self.curve("clients_ok") + (self.curve("clients_failed") if way == "downlink" else 0)
            total += np.nan_to_num(self.curve(f"{way}_bytes")) * clients
        megabytes: Floats = np.cumsum(total, 1) / 1e6
        return megabytes


def read_groups(summaries: Sequence[Path]) -> list[Group]:
    """Read the runs that summaries are of, and put them together, in the order in which they come.

    Raises:
        RunError: a file of a run cannot be read.
    """
    alike: dict[str, list[Run]] = {}
    for run in map(read_finished, summaries):
        alike.setdefault(json.dumps([run.strategy, run.telling], sort_keys=True, default=str), []).append(run)
    groups = [sorted(found, key=lambda run: int(run.settings.get("seed", 0))) for found in alike.values()]
    named = name_runs([found[0] for found in groups])
    return [Group(told, shared, found) for (told, shared), found in zip(named, groups, strict=True)]


def footnote(groups: Sequence[Group], *left_out: str) -> list[str]:
    """The lines below a table that say what its names leave out; none where they leave out nothing.

    Args:
        groups: whose names stand in the table.
        left_out: settings that the names do not have either way.
    """
    said = {f"{key}={value}": None for group in groups for key, value in group.shared.items() if key not in left_out}
    return ["", f"{FOOTNOTE}{', '.join(said)}."] if said else []


def metric_of(groups: Sequence[Group]) -> str:
    """The headline metric in words, or `metric` where the groups have different ones."""
    names = {group.metric.replace("_", " ") for group in groups}
    return names.pop() if len(names) == 1 else "metric"


def final_of(groups: Sequence[Group], last: int) -> str:
    """What `Group.late` gives, in words."""
    name = metric_of(groups)
    return f"final {name}" if last == 1 else f"{name} of the last {last} rounds"


def percent(values: Floats) -> str:
    """The mean over runs in percent, and the standard deviation of several."""
    spread = f" ± {100 * values.std(ddof=1):.2f}" if len(values) > 1 else ""
    return f"{100 * values.mean():.2f}{spread}"


def span(values: Sequence[float], form: str = "d") -> str:
    """The least and the most, or the one value that all have as they are shown."""
    least, most = format(min(values), form), format(max(values), form)
    return least if least == most else f"{least}-{most}"
