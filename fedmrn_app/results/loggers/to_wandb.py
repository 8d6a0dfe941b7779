"""Logger for Weights & Biases, which sends nothing from this machine unless `log.mode=online` is set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from fedmrn_app.results.loggers.logger import Logger, run_name


class RunLogger(Logger):
    """Logs columns by their names, the configuration as that of the run, and the curves as an image."""

    def __init__(self, settings: Mapping[str, Any], values: dict[str, Any], folder: Path) -> None:
        place = folder if settings["folder"] is None else Path(settings["folder"])
        place.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project=settings["project"],
            name=run_name(folder),
            dir=str(place),
            mode=settings["mode"],
            config=values,
            reinit="create_new",  # one process may log the runs of a sweep one after another
            settings=wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
        )

    def row(self, number: int, row: Mapping[str, float]) -> None:
        """Log the columns of this step."""
        self._run.log(dict(row), step=number)

    def end(self, summary: Mapping[str, Any], curves: Path) -> None:
        """Log the summary and the curves."""
        self._run.summary.update(dict(summary))
        self._run.log({"curves": wandb.Image(str(curves))})

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()
