"""The runs of a sweep: each run leaves its outcome in the sweep's folder, where the command reads it."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from fedmrn_app.report.console import Outcome
from fedmrn_app.results.resume import UNFIT
from fedmrn_app.system.atomic_io import write_durably
from fedmrn_app.system.cores import cores

_OUTCOMES = ".outcomes"  # in a sweep's folder
_BEST = "optimization_results.yaml"  # of Hydra's sweepers that search


def is_sweep() -> bool:
    """Return whether this process works on a run of a sweep."""
    return bool(HydraConfig.get().mode == RunMode.MULTIRUN)


def forget_outcomes(folder: Path) -> None:
    """Remove the outcomes that an earlier command has left in a sweep's folder."""
    shutil.rmtree(folder / _OUTCOMES, ignore_errors=True)
    (folder / _BEST).unlink(missing_ok=True)


def leave_outcome(overrides: str, result: Mapping[str, Any] | str, code: str = "") -> None:
    """Write the outcome of this run of a sweep: its summary, or the reason why it has none and the error's code."""
    settings = HydraConfig.get()
    folder = Path(settings.sweep.dir) / _OUTCOMES
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"number": settings.job.num, "overrides": overrides, "result": result, "code": code})
    write_durably(folder / f"{settings.job.num}.json", text.encode())


def read_outcomes(folder: Path) -> list[tuple[int, Outcome]]:
    """Return the numbers and outcomes of a sweep's runs, in ascending order."""
    return sorted((one["number"], (one["overrides"], one["result"])) for one in _outcomes(folder))


def count_unfit(folder: Path) -> int:
    """Return how many runs of a sweep failed because another run is in their folder, which no repetition completes."""
    return sum(one.get("code") in UNFIT for one in _outcomes(folder))


def _outcomes(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (folder / _OUTCOMES).glob("*.json")]


def read_best(folder: Path) -> str | None:
    """Return the best settings that a searching sweeper has found, as one line; None where it has found none."""
    path = folder / _BEST
    if not path.is_file():
        return None
    found: Any = OmegaConf.load(path)
    best = " ".join(f"{key}={value}" for key, value in (found.get("best_params") or {}).items())
    return f"best: {best}, which reached {found.get('best_value', math.nan):.4f}" if best else None


def runs_at_once() -> int:
    """Return how many runs of this sweep share this machine, as far as Hydra's settings tell."""
    settings = HydraConfig.get()
    if not is_sweep():
        return 1
    if "n_jobs" in settings.launcher:  # joblib; -1 for all cores
        return cores() if settings.launcher.n_jobs < 0 else max(1, settings.launcher.n_jobs)
    local = str(settings.launcher["_target_"]).endswith("submitit_launcher.LocalLauncher")
    return int(settings.sweeper.get("max_batch_size") or 1) if local else 1


def in_parallel() -> bool:
    """Return whether runs of this sweep share the console or have none."""
    return is_sweep() and not str(HydraConfig.get().launcher["_target_"]).endswith("BasicLauncher")
