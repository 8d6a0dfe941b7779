"""Finished runs as their folders describe them: summary, settings and rounds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from yaml import YAMLError

from fedmrn_app.config.schema import Config, SimulationConfig
from fedmrn_app.data.partitions import PartitionConfig
from fedmrn_app.errors import RunError
from fedmrn_app.federation.downlinks import ON_LATTICE
from fedmrn_app.privacy.mechanism import PrivacyConfig
from fedmrn_app.results.resume import flatten
from fedmrn_app.results.round_row import from_row
from fedmrn_app.results.summary import summarize

# Settings that do not change what is computed, or that stand in columns of their own.
_NOT_IN_NAMES = {
    "seed", "resume", "restarts", "round_timeout", "node_timeout", "device", "client_gpus", "strategy.name",
    "dataset.path",
}  # fmt: skip
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a sixth of the time that OmegaConf takes
REMARK = "remark.txt"
LATTICE_ONLY = ("downlink.step", "downlink.memory")  # without effect where the downlink has another form
_PLANNED = ("strategy.output_lr", "privacy.epsilon")  # what a run does in a round depends on the number of rounds
# The values of keys that a run of an older version does not have.
_DEFAULTS = {
    prefix + field.name: field.default
    for prefix, section in (
        ("", Config),
        ("partition.", PartitionConfig),
        ("privacy.", PrivacyConfig),
        ("simulation.", SimulationConfig),
    )
    for field in fields(section)
    if field.default is not MISSING
}
# What a run did that is older than an option of its method; the option's default may differ.
_EARLIER: dict[str, dict[str, Any]] = {
    "eden": {"strategy.share": 1.0},
    "fedmrn": {"strategy.shared_noise": False},
    "fedmrns": {"strategy.shared_noise": False},
    "quantized": {"strategy.low_rank": False, "strategy.scale": "auto", "strategy.tensor_steps": 0.0},
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One finished run.

    Attributes:
        folder: the run's folder.
        summary: the content of summary.json.
        settings: the configuration by dotted keys.
        rounds: the content of rounds.csv, a row for each round.
        remark: the content of remark.txt, one line that a reader of the run's results must know; may be missing.
    """

    folder: Path
    summary: Mapping[str, Any]
    settings: Mapping[str, Any]
    rounds: pd.DataFrame
    remark: str = ""

    @property
    def strategy(self) -> str:
        """The method's name."""
        return str(self.summary["strategy"])

    @property
    def data(self) -> str:
        """The data in words, see `data_of`."""
        return data_of(self.summary)

    @property
    def naming_settings(self) -> dict[str, Any]:
        """The settings by which runs may be named: those that change the result, without the seed."""
        return {
            key: value
            for key, value in self.settings.items()
            if key not in _NOT_IN_NAMES and not key.startswith("log.")
        }


def data_of(summary: Mapping[str, Any]) -> str:
    """Return the data set and its partition, and the split that was evaluated where it is not the test split."""
    split = summary.get("evaluated_on", "test")
    return f"{summary['dataset']}, {summary['partition']}" + ("" if split == "test" else f", {split}")


def find_summaries(folders: Sequence[Path]) -> list[Path]:
    """Return the paths of all summaries in and below some folders, each once; numbered folders sort by number.

    Raises:
        RunError: a folder does not exist or holds no summary.
    """
    found: set[Path] = set()
    for folder in folders:
        if not folder.is_dir():
            raise RunError(f"{folder}: no such folder", code="no-folder", value=str(folder))
        below = set(folder.rglob("summary.json"))
        if not below:
            message = f"{folder}: no summary.json in or below it; has the run ended?"
            raise RunError(message, code="no-summary", value=str(folder))
        found |= below
    return sorted(
        found, key=lambda path: (len(path.parts), [part.zfill(9) if part.isdigit() else part for part in path.parts])
    )


def read_run(path: Path, rounds: int | None = None, *, with_settings: bool = True) -> Run:
    """Read the run that a summary belongs to.

    Args:
        path: the run's summary.json.
        rounds: number of first rounds to read, all by default; see `begin_of`.
        with_settings: whether to read config.yaml, too.

    Raises:
        RunError: a file of the run is missing or damaged, or has no rounds, or `begin_of` refuses the run.
    """
    folder = path.parent
    try:
        settings = _read_settings(folder / "config.yaml") if with_settings else {}
        # Python's own conversion is exact in all versions of pandas
        rows = pd.read_csv(folder / "rounds.csv", dtype=object, keep_default_na=False).astype(float)
        summary = json.loads(path.read_text())
        if rows.empty or "strategy" not in summary:
            raise ValueError("rounds.csv has no rounds" if rows.empty else "summary.json names no strategy")
        remark = folder / REMARK
        words = " ".join(remark.read_text().split()) if remark.is_file() else ""
        run = Run(folder=folder, summary=summary, settings=settings, rounds=rows, remark=words)
        return run if rounds is None else begin_of(run, rounds)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, YAMLError) as error:
        raise unreadable(folder, error) from error


def begin_of(run: Run, rounds: int) -> Run:
    """Return a run as it would be had it ended after its first rounds.

    Args:
        run: the run.
        rounds: number of rounds to keep.

    Raises:
        RunError: the run has fewer rounds, or its training depends on how many rounds are still to come.
    """
    option: dict[str, Any] = {"key": "--rounds", "value": rounds}
    if len(run.rounds) < rounds:
        message = f"--rounds {rounds}: {run.folder} has {len(run.rounds)} rounds"
        raise RunError(message, code="too-few-rounds", **option)
    planned = next((key for key in _PLANNED if run.settings.get(key) is not None), None)
    if planned and len(run.rounds) > rounds:
        message = f"--rounds {rounds}: {run.folder} has {planned}={run.settings[planned]}, which depends on the number "
        raise RunError(
            f"{message}of rounds, so that a shorter run would have been another one", code="planned", **option
        )
    kept = run.rounds.head(rounds)
    headline = run.summary["metric"]
    others = (key for key in kept if f"best_{key}" in run.summary and key not in ("round", headline))
    metrics = [headline, *others]
    summary = summarize([from_row(row, metrics) for row in kept.to_dict("records")], {})
    settings = {**run.settings, "rounds": rounds}
    return replace(run, rounds=kept, settings=settings, summary={**run.summary, **summary})


def unreadable(folder: Path, error: Exception) -> RunError:
    """Return the error for a folder whose files are not those of a finished run."""
    reason = " ".join(str(error).split())
    message = f"{folder}: cannot be read as a run's folder ({type(error).__name__}: {reason})"
    return RunError(message, code="unreadable-run", value=str(folder))


def _read_settings(path: Path) -> dict[str, Any]:
    settings = flatten(yaml.load(path.read_text(), _LOADER))
    defaults = _DEFAULTS | _EARLIER.get(str(settings.get("strategy.name")), {})
    settings |= {key: value for key, value in defaults.items() if key not in settings}
    if settings.get("downlink.dtype") not in ON_LATTICE:
        settings = {key: value for key, value in settings.items() if key not in LATTICE_ONLY}
    return settings
