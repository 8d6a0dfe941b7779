"""The runs of a sweep: what the command line sets, over what the experiment's file sets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Glob, Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue, OmegaConfBaseException

from fedmrn_app.config.build import build_task
from fedmrn_app.config.compose import GROUPS, choices_of, compose_checked, load_config, open_own_groups, parse
from fedmrn_app.config.schema import Config
from fedmrn_app.data.place import Place
from fedmrn_app.errors import ConfigError
from fedmrn_app.tasks.task import Task
from fedmrn_app.validation import check_value, refusal

_MOST_RUNS = 10_000
_OWN_FOLDER = "each run needs a folder of its own in the sweep's; set one with an interpolation"
_BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


@dataclass(frozen=True)
class Sweep:
    """A sweep before it starts.

    Attributes:
        runs: the overrides of each run as Hydra's basic sweeper makes them, without those of Hydra itself; of a sweeper
            that searches, the runs at the ends of its intervals.
        folder: folder that holds the runs' folders.
        searches: whether the sweeper chooses its runs as it goes; it may choose others than `runs`.
        direction: what such a sweeper does with the headline metric, `maximize` or `minimize`; None if it says neither.
    """

    runs: list[list[str]]
    folder: Path
    searches: bool = False
    direction: str | None = None

    def check(self, *, here: bool = False) -> None:
        """Check the configuration of every run; of runs that differ in their seed alone, one, and of others the seed.

        Args:
            here: whether the runs read their data on this machine, so that `dataset.path` must be there.

        Raises:
            ConfigError: of the first run that is refused.
            DataError: its data are not there.
        """
        seen: set[tuple[str, ...]] = set()
        seeds: set[str] = set()
        for run in self.runs:
            seed = next((word for word in run if word.startswith("seed=")), "")
            others = tuple(word for word in run if word != seed)
            if others in seen:
                if seed not in seeds:
                    check_value(Config, "seed", parse([seed])[0].value() if seed else 0)
                    seeds.add(seed)
                continue
            task = build_task(load_config(tuple(run)))
            self._check_direction(task)
            if here and (path := getattr(task, "path", None)) is not None:
                Place(task.path_key, path).find("where the data of the sweep's runs are")
            seen.add(others)
            seeds.add(seed)

    def _check_direction(self, task: Task) -> None:
        wanted = "minimize" if task.sign() < 0 else "maximize"
        if self.direction in ("maximize", "minimize") and self.direction != wanted:
            reason = f"{'less' if task.sign() < 0 else 'more'} {task.metrics[0]} is better; set {wanted}"
            raise refusal("hydra.sweeper.direction", self.direction, reason, "direction")


def open_sweep(overrides: Sequence[str]) -> Sweep:
    """Return the sweep that a command line with --multirun asks for.

    Raises:
        ConfigError: an override cannot be read, or one of several experiments is a sweep itself.
    """
    settings = _settings(overrides)
    folder = _folder(settings, "sweep")
    runs = _runs([*swept(settings), *overrides])
    subdir = OmegaConf.to_container(settings.sweep, resolve=False)["subdir"]  # type: ignore[call-overload, index]
    if len(runs) > 1 and "${" not in str(subdir):
        raise refusal("hydra.sweep.subdir", subdir, f"{_OWN_FOLDER}, such as '${{hydra.job.num}}'", "folder")
    direction = settings.sweeper.get("direction")
    return Sweep(
        runs,
        folder,
        searches=settings.sweeper["_target_"] != _BASIC,
        direction=None if direction is None else str(direction),
    )


def run_folder(settings: DictConfig) -> Path | None:
    """Return the folder of a run; None if it has a part that Hydra alone knows.

    Args:
        settings: Hydra's own part of the configuration.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    try:
        return _folder(settings, "run")
    except ConfigError as error:
        if isinstance(error.__cause__, MissingMandatoryValue | InterpolationToMissingValueError):
            return None
        raise


def _folder(settings: DictConfig, kind: str) -> Path:
    key = f"hydra.{kind}.dir"
    try:
        text = settings[kind].dir
        if text is None or not str(text):
            raise refusal(key, text, "must name a folder", "folder")
        return Path(str(text)).expanduser().resolve()
    except (OmegaConfBaseException, OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{key}: {str(error).splitlines()[0]}", code="folder", key=key) from error


def sweep_of(overrides: Sequence[str]) -> list[str]:
    """Return what the experiment of a command line sweeps over, as `KEY=VALUES`; empty if it is one run."""
    return swept(_settings(overrides))


def swept(settings: DictConfig) -> list[str]:
    """Return what Hydra's own part of a configuration sweeps over, as `KEY=VALUES`."""
    return [f"{key}={value}" for key, value in (settings.sweeper.params or {}).items()]


def _settings(overrides: Sequence[str]) -> DictConfig:
    """Return Hydra's own part of the configuration, which the runs share."""
    fixed = []
    for text, override in zip(overrides, parse(overrides), strict=True):
        if not override.is_sweep_override():
            if override.is_hydra_override() or override.key_or_group in GROUPS:  # other keys may need a swept choice
                fixed.append(text)
        elif override.key_or_group == "experiment":
            for word in _values(text, override):
                if sweep_of([word]):
                    name = word.partition("=")[2]
                    reason = "is a sweep of its own; start one command for each of them"
                    raise refusal("experiment", name, reason, "sweep")
    settings: DictConfig = compose_checked(fixed, hydra=True).hydra
    return settings


def _runs(overrides: Sequence[str]) -> list[list[str]]:
    """Return every combination; of a key that comes twice the last one counts, in the place of the first.

    Raises:
        ConfigError: an override has no values.
    """
    columns: dict[str, list[str]] = {}
    for text, override in zip(overrides, parse(overrides), strict=True):
        if override.is_hydra_override():
            continue
        key = override.get_key_element().lstrip("+~")
        try:
            columns[key] = list(itertools.islice(_values(text, override), _MOST_RUNS + 1))
        except ValueError as error:
            raise refusal(key, text.partition("=")[2], f"has no values to sweep over ({error})", "sweep") from error
        if not columns[key]:
            raise refusal(key, text.partition("=")[2], "has no values to sweep over", "sweep")
    if math.prod(map(len, columns.values())) > _MOST_RUNS:
        raise ConfigError(f"--multirun: more than {_MOST_RUNS} runs; split the sweep", code="sweep")
    return [open_own_groups(run) for run in map(list, itertools.product(*columns.values()))]


def _values(text: str, override: Override) -> Iterator[str]:
    sweep: Any = override.value()
    if not override.is_sweep_override():
        yield text
        return
    if isinstance(sweep, Glob):
        values = sweep.filter(choices_of(override.key_or_group))
    elif override.is_discrete_sweep():
        values = list(override.sweep_string_iterator())
    else:
        values = [sweep.start, sweep.end]
    for value in values:
        yield f"{override.get_key_element()}={value}"
