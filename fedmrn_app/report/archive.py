"""Copies of finished runs that hold what tables and figures need, without models, logs and paths."""

from __future__ import annotations

import json
from collections.abc import Iterable
from os.path import commonpath
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf
from yaml import YAMLError

from fedmrn_app.environment import COMMIT
from fedmrn_app.errors import RunError
from fedmrn_app.report.rounds_file import unreadable
from fedmrn_app.report.runs import REMARK
from fedmrn_app.results.provenance import lacks_commit
from fedmrn_app.system.atomic_io import write_durably

_GROUPS_WITH_PATH = ("dataset", "task")


def keep_runs(runs: Iterable[str | Path], folder: Path) -> list[Path]:
    """Copy summary, rounds and configuration of runs into folders of the same names below a folder.

    Args:
        runs: the runs' folders.
        folder: target, created if necessary; it replaces runs of the same name.

    Returns:
        The copies' folders.

    Raises:
        RunError: a run's file cannot be read, or its summary names no commit from which it can be made again.
    """
    found = [Path(run).resolve() for run in runs]
    for run in found:
        _check_commit(run)
    parent = Path(commonpath([run.parent for run in found]))
    copies = []
    for run in found:
        copy = folder / run.relative_to(parent)
        copy.mkdir(parents=True, exist_ok=True)
        try:
            values = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(run / "config.yaml")))
            for group in _GROUPS_WITH_PATH:
                if isinstance(values.get(group), dict) and "path" in values[group]:
                    values[group]["path"] = None
            write_durably(copy / "config.yaml", OmegaConf.to_yaml(values).encode())
            for name in ("rounds.csv", "summary.json", *([REMARK] if (run / REMARK).is_file() else [])):
                write_durably(copy / name, (run / name).read_bytes())
        except (OSError, ValueError, YAMLError) as error:
            raise unreadable(run, error) from error
        copies.append(copy)
    return copies


def _check_commit(run: Path) -> None:
    """Refuse a run that names no commit, or whose code had changes that are in none."""
    try:
        commit = (json.loads((run / "summary.json").read_text()).get("made_with") or {}).get("commit")
    except (OSError, ValueError, AttributeError) as error:
        raise unreadable(run, error) from error
    if reason := lacks_commit(commit):
        message = (
            f"--keep: {run} was made {reason}, so that nobody can make it again; run it from a checkout without "
            f"changes, or with {COMMIT} on a machine without a repository"
        )
        raise RunError(message, code="no-commit", key="--keep", value=str(run))
