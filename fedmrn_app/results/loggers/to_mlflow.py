"""Logger for MLflow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from fedmrn_app.results.loggers.logger import Logger, run_name
from fedmrn_app.results.resume import flatten

_MAX_CHARACTERS = 500  # of a parameter
_MAX_PARAMETERS = 100  # in one call


class RunLogger(Logger):
    """Logs columns as metrics, the configuration as parameters by dotted keys, and files as artifacts."""

    def __init__(self, settings: Mapping[str, Any], values: dict[str, Any], folder: Path) -> None:
        place = Path(settings["folder"] or ".").resolve()
        place.mkdir(parents=True, exist_ok=True)
        self._folder, self._ended = folder, False
        server, project = settings["server"], settings["project"]
        with FileLock(place / ".mlflow.lock"):  # only one of several starting runs creates the tables
            self._client = MlflowClient(server or f"sqlite:///{place / 'mlflow.db'}")
            found = self._client.get_experiment_by_name(project)
            artifacts = None if server else (place / "mlruns").as_uri()
            experiment = found.experiment_id if found else self._client.create_experiment(project, artifacts)
        name = f"{values['strategy']['name']} {run_name(folder)}"
        self._run = self._client.create_run(experiment, run_name=name).info.run_id
        parameters = [Param(key, str(value)[:_MAX_CHARACTERS]) for key, value in flatten(values).items()]
        for start in range(0, len(parameters), _MAX_PARAMETERS):
            self._client.log_batch(self._run, params=parameters[start : start + _MAX_PARAMETERS])

    def row(self, number: int, row: Mapping[str, float]) -> None:
        """Log the columns as metrics of this step."""
        now = int(1000 * time.time())
        self._client.log_batch(self._run, metrics=[Metric(key, value, now, number) for key, value in row.items()])

    def end(self, summary: Mapping[str, Any], curves: Path) -> None:
        """Upload the run's files."""
        for name in ("config.yaml", "rounds.csv", "summary.json", curves.name):
            self._client.log_artifact(self._run, str(self._folder / name))
        self._ended = True

    def close(self) -> None:
        """Set the run's status."""
        self._client.set_terminated(self._run, "FINISHED" if self._ended else "FAILED")
