"""A run in Weights & Biases, on this machine alone unless `log.mode=online` says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from fedmrn_app.config.schema import LogConfig, Values
from fedmrn_app.results.loggers.logger import Logger, run_name


class ToWandb(Logger):
    """Columns by their names over rounds, the configuration as the run's, the curves as a picture."""

    def __init__(self, config: LogConfig, values: Values, folder: Path) -> None:
        place = folder if config.folder is None else Path(config.folder)
        place.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project=config.project,
            name=run_name(folder),
            dir=str(place),
            mode=config.mode,
            config=values,
            reinit="create_new",  # a sweep's runs follow each other in one process
            settings=wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
        )

    def row(self, number: int, row: Mapping[str, float]) -> None:
        """See `Logger`."""
        self._run.log(dict(row), step=number)

    def end(self, summary: Mapping[str, Any], curves: Path) -> None:
        """See `Logger`."""
        self._run.summary.update(dict(summary))
        self._run.log({"curves": wandb.Image(str(curves))})

    def close(self) -> None:
        """See `Logger`."""
        self._run.finish()
