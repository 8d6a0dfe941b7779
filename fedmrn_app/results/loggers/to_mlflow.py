"""A run in MLflow: in a file on this machine, or on the tracking server that `log.server` names."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from fedmrn_app.config.schema import LogConfig, Values
from fedmrn_app.results.loggers.logger import Logger, run_name
from fedmrn_app.results.settings import flat

_LONGEST = 500  # characters of a parameter
_MOST = 100  # parameters that MLflow takes at once


class ToMlflow(Logger):
    """Columns as metrics, the configuration as parameters by dotted keys, files as artifacts."""

    def __init__(self, config: LogConfig, values: Values, folder: Path) -> None:
        place = Path(config.folder or ".").resolve()
        place.mkdir(parents=True, exist_ok=True)
        self._folder, self._ended = folder, False
        with FileLock(place / ".mlflow.lock"):  # of two runs that start, one makes the tables
            self._client = MlflowClient(config.server or f"sqlite:///{place / 'mlflow.db'}")
            found = self._client.get_experiment_by_name(config.project)
            artifacts = None if config.server else (place / "mlruns").as_uri()
            experiment = found.experiment_id if found else self._client.create_experiment(config.project, artifacts)
        name = f"{values['strategy']['name']} {run_name(folder)}"
        self._run = self._client.create_run(experiment, run_name=name).info.run_id
        settings = [Param(key, str(value)[:_LONGEST]) for key, value in flat(values)]
        for start in range(0, len(settings), _MOST):
            self._client.log_batch(self._run, params=settings[start : start + _MOST])

    def row(self, number: int, row: Mapping[str, float]) -> None:
        """See `Logger`."""
        now = int(1000 * time.time())
        self._client.log_batch(self._run, metrics=[Metric(key, value, now, number) for key, value in row.items()])

    def end(self, summary: Mapping[str, Any], curves: Path) -> None:
        """See `Logger`."""
        for name in ("config.yaml", "rounds.csv", "summary.json", curves.name):
            self._client.log_artifact(self._run, str(self._folder / name))
        self._ended = True

    def close(self) -> None:
        """See `Logger`."""
        self._client.set_terminated(self._run, "FINISHED" if self._ended else "FAILED")
