"""Finished runs kept for good: what their tables and figures are made from, without models, logs and paths."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonpath
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf
from yaml import YAMLError

from fedmrn_app.errors import RunError
from fedmrn_app.results.atomic_io import write_durably

_PATHS = (("dataset", "path"), ("task", "path"))  # of the machine that a run was on


def keep_runs(summaries: Sequence[Path], folder: Path) -> list[Path]:
    """Copy summary, rounds and configuration of runs into folders of the same names below a folder.

    Args:
        summaries: paths of the runs' summary.json.
        folder: made if it is not there; a run of the same name in it is replaced.

    Returns:
        The folders.

    Raises:
        RunError: a run's file cannot be read.
    """
    runs = [summary.parent.resolve() for summary in summaries]
    above = Path(commonpath([run.parent for run in runs]))
    kept = []
    for run in runs:
        there = folder / run.relative_to(above)
        there.mkdir(parents=True, exist_ok=True)
        try:
            values = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(run / "config.yaml")))
            for group, key in _PATHS:
                if isinstance(values.get(group), dict) and key in values[group]:
                    values[group][key] = None
            write_durably(there / "config.yaml", OmegaConf.to_yaml(values).encode())
            for name in ("rounds.csv", "summary.json"):
                write_durably(there / name, (run / name).read_bytes())
        except (OSError, ValueError, YAMLError) as error:
            reason = " ".join(str(error).split())
            raise RunError(f"{run}: cannot be read as a run's folder ({type(error).__name__}: {reason})") from error
        kept.append(there)
    return kept
