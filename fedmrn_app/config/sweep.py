"""Which runs a sweep consists of: what the command line says over what its experiment's file says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from fedmrn_app.config.compose import GROUPS, compose_checked, load_config, open_own_groups, parse
from fedmrn_app.errors import ConfigError

_BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


@dataclass(frozen=True)
class Sweep:
    """A sweep before it starts.

    Attributes:
        runs: the overrides of each run, as Hydra's basic sweeper makes them, without those of Hydra itself; of a
            sweeper that searches, those at the ends of its intervals.
        folder: that holds the runs' folders.
        searches: whether the sweeper chooses the runs as it goes, so that `runs` are none of them.
    """

    runs: Sequence[Sequence[str]]
    folder: Path
    searches: bool = False

    def check(self) -> None:
        """Check the configuration of every run; runs that differ in their seed alone are checked once.

        Raises:
            ConfigError: of the first that is wrong.
        """
        seen: dict[tuple[str, ...], None] = {}
        seeds: set[str] = set()
        for run in self.runs:
            seed = next((word for word in run if word.startswith("seed=")), "")
            others = tuple(word for word in run if word != seed)
            if others in seen and seed in seeds:
                continue
            load_config(tuple(run))
            seen[others] = None
            seeds.add(seed)


def open_sweep(overrides: Sequence[str]) -> Sweep:
    """The sweep that a command line asks for with --multirun.

    Raises:
        ConfigError: an override that cannot be read, or an experiment that is a sweep itself among several.
    """
    parsed = parse(overrides)
    settings = _settings(overrides, parsed)
    searches = settings.sweeper["_target_"] != _BASIC
    words = [f"{key}={value}" for key, value in (settings.sweeper.params or {}).items()]
    try:
        folder = Path(str(settings.sweep.dir)).expanduser().resolve()
    except OmegaConfBaseException as error:
        raise ConfigError(f"hydra.sweep.dir: {str(error).splitlines()[0]}") from error
    return Sweep(_runs([*words, *overrides]), folder, searches)


def expand_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each run of a sweep, see `Sweep.runs`.

    Raises:
        ConfigError: as `open_sweep`.
    """
    return [list(run) for run in open_sweep(overrides).runs]


def sweep_of(overrides: Sequence[str]) -> list[str]:
    """What the experiment of a command line sweeps over, as `KEY=VALUES`; nothing where it is one run."""
    return [f"{key}={value}" for key, value in (_settings(overrides, parse(overrides)).sweeper.params or {}).items()]


def _settings(overrides: Sequence[str], parsed: Sequence[Override]) -> DictConfig:
    """Hydra's own part of the configuration that the runs share."""
    fixed = []
    for text, override in zip(overrides, parsed, strict=True):
        if not override.is_sweep_override():
            if override.is_hydra_override() or override.key_or_group in GROUPS:  # other keys may need a swept choice
                fixed.append(text)
        elif override.key_or_group == "experiment":
            for name in override.sweep_string_iterator():
                if sweep_of([f"experiment={name}"]):
                    raise ConfigError(f"experiment={name}: is a sweep of its own; start one command for each of them")
    settings: DictConfig = compose_checked(fixed, hydra=True).hydra
    return settings


def _runs(overrides: Sequence[str]) -> list[list[str]]:
    """Every combination; of a key that comes twice the last one counts, in the place of the first."""
    columns: dict[str, list[str]] = {}
    for text, override in zip(overrides, parse(overrides), strict=True):
        if not override.is_hydra_override():
            columns[override.get_key_element().lstrip("+~")] = list(_values(text, override))
    return [open_own_groups(run) for run in map(list, itertools.product(*columns.values()))]


def _values(text: str, override: Override) -> Iterator[str]:
    if not override.is_sweep_override():
        yield text
    elif override.is_discrete_sweep():
        for value in override.sweep_string_iterator():
            yield f"{override.get_key_element()}={value}"
    else:
        sweep: Any = override.value()
        for value in (sweep.start, sweep.end):
            yield f"{override.get_key_element()}={value}"
