"""Finished runs put together: those that differ in their seed alone are one group, named by what it differs in."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf
from yaml import YAMLError

from fedmrn_app.config.types import Config
from fedmrn_app.errors import RunError
from fedmrn_app.results.published import published
from fedmrn_app.results.settings import flat

Floats = NDArray[np.float64]

# of a configuration, what does not change what is computed, or is told by the table's own columns
_UNTOLD = {"seed", "resume", "restarts", "round_timeout", "node_timeout", "strategy.name", "dataset.path"}
_OF_A_GRID = ("downlink.step", "downlink.memory")  # likewise, where the global model goes down in another form
_LONGEST = 4  # settings in a name
# what a run did before there was the key
_OLDER = {field.name: field.default for field in fields(Config) if field.default is not MISSING}


@dataclass(frozen=True)
class Run:
    """One finished run: its summary, its settings by dotted keys, and the columns of its rounds."""

    folder: Path
    summary: Mapping[str, Any]
    settings: Mapping[str, Any]
    columns: Mapping[str, Floats]


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone.

    Attributes:
        told: the settings by which groups of its strategy are told apart: those in which some on the same data differ.
        runs: at least one, by their seeds.
    """

    told: Mapping[str, str]
    runs: Sequence[Run]

    @property
    def name(self) -> str:
        """The strategy, and the first few of the settings that tell; the same on all data."""
        return self.name_without()

    @property
    def data(self) -> str:
        """The data set and its partition, and the split that was evaluated on where it is not the test split."""
        return data_of(self.runs[0].summary)

    @property
    def strategy(self) -> str:
        """The method's name."""
        return str(self.runs[0].summary["strategy"])

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
        words = [f"{key}={value}" for key, value in self.told.items() if key not in left_out]
        return " ".join([self.strategy, *words[:_LONGEST], *(["..."] if len(words) > _LONGEST else [])])

    def traffic(self, ways: Sequence[str]) -> Floats:
        """MB of all clients up to and including each round, in these ways, shape (runs, rounds)."""
        total = np.zeros_like(self.curve("round"))
        for way in ways:
            clients = self.curve("clients_ok") + (self.curve("clients_failed") if way == "downlink" else 0)
            total += np.nan_to_num(self.curve(f"{way}_bytes")) * clients
        megabytes: Floats = np.cumsum(total, 1) / 1e6
        return megabytes


def data_of(summary: Mapping[str, Any]) -> str:
    """What a run's metrics are of, in words."""
    split = summary.get("evaluated_on", "test")
    return f"{summary['dataset']}, {summary['partition']}" + ("" if split == "test" else f", {split}")


def read_groups(summaries: Sequence[Path]) -> list[Group]:
    """Read the runs that summaries are of, and put them together, in the order in which they come.

    Raises:
        RunError: a file of a run cannot be read.
    """
    runs = [_read(path) for path in summaries]
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(json.dumps(settings_of(run), sort_keys=True, default=str), []).append(run)
    groups = [sorted(found, key=lambda run: int(run.settings.get("seed", 0))) for found in alike.values()]
    telling = _telling(groups)
    return [Group(_told(found[0], telling[found[0].summary["strategy"]]), found) for found in groups]


def settings_of(run: Run) -> dict[str, Any]:
    """The settings that change what is computed, but for the seed, by dotted keys."""
    return {key: value for key, value in run.settings.items() if key == "strategy.name" or not _untold(key)}


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


def short(value: Any) -> str:
    """A setting's value as one types it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"


def _telling(groups: Sequence[Sequence[Run]]) -> dict[str, list[str]]:
    """By strategy the settings, dotted, in which groups of the same data differ."""
    keys: dict[str, dict[str, None]] = {}  # in order, each once
    for group in groups:
        first = group[0]
        rivals = [
            other[0].settings
            for other in groups
            if other[0].summary["strategy"] == first.summary["strategy"]
            and data_of(other[0].summary) == data_of(first.summary)
        ]
        keys.setdefault(first.summary["strategy"], {}).update(
            (key, None)
            for key, value in first.settings.items()
            if not _untold(key)
            and key != "rounds"  # tables say how many each has
            and any(rival.get(key) != value for rival in rivals if key in rival or key not in _OF_A_GRID)
        )
    return {strategy: list(found) for strategy, found in keys.items()}


def _told(run: Run, keys: Sequence[str]) -> dict[str, str]:
    return {key: short(run.settings[key]) for key in keys if key in run.settings}


def _untold(key: str) -> bool:
    return key in _UNTOLD or key.startswith("log.")


def _read(path: Path) -> Run:
    folder = path.parent
    try:
        settings = dict(flat(cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(folder / "config.yaml")))))
        with (folder / "rounds.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        columns = {key: np.array([float(row[key]) for row in rows]) for key in rows[0]}
        settings |= {key: value for key, value in _OLDER.items() if key not in settings}
        if settings.get("downlink.dtype") != "grid":
            settings = {key: value for key, value in settings.items() if key not in _OF_A_GRID}
        return Run(folder, json.loads(path.read_text()), settings, columns)
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, YAMLError) as error:
        reason = " ".join(str(error).split())
        raise RunError(f"{folder}: cannot be read as a run's folder ({type(error).__name__}: {reason})") from error
