"""Which logger a configuration asks for, and how it is fed while a run goes on."""

from __future__ import annotations

import csv
import importlib.util
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedmrn_app.config.schema import LogConfig, Values
from fedmrn_app.errors import ConfigError
from fedmrn_app.results.loggers.logger import Logger

Report = Callable[[str], None]


def check_library(config: LogConfig) -> None:
    """Refuse a logger whose library is not installed.

    Raises:
        ConfigError: says how to install it.
    """
    if config.name != "none" and importlib.util.find_spec(config.name) is None:
        raise ConfigError(f"log={config.name}: is not installed; pip install 'fedmrn[{config.name}]'")


def open_logger(config: LogConfig, values: Values, folder: Path) -> Logger | None:
    """The logger of a run, None for `log=none`; its library is imported here.

    Args:
        config: which one.
        values: the run's configuration, resolved.
        folder: the run's.
    """
    if config.name == "tensorboard":
        from fedmrn_app.results.loggers.to_tensorboard import ToTensorBoard

        return ToTensorBoard(config, values, folder)
    if config.name == "wandb":
        from fedmrn_app.results.loggers.to_wandb import ToWandb

        return ToWandb(config, values, folder)
    if config.name == "mlflow":
        from fedmrn_app.results.loggers.to_mlflow import ToMlflow

        return ToMlflow(config, values, folder)
    return None


class Feed:
    """Gives a logger each row of rounds.csv as soon as it is there; its failure is a line, and never the run's.

    A run that goes on is logged anew from its first round, so that each of the library's runs is whole.
    """

    def __init__(self, config: LogConfig, values: Values, folder: Path, report: Report) -> None:
        self._name = config.name
        self._folder = folder
        self._report = report
        self._logged = 0  # number of the last round
        self._logger: Logger | None = None
        self._try(lambda: self._open(config, values))

    def read(self) -> None:
        """Log the rows that have come."""
        self._try(self._read)

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Log the rest, and the summary of a run that has completed."""
        self.read()
        if summary is not None:
            self._try(lambda: self._logger and self._logger.end(summary, self._folder / "curves.png"))
        self._try(lambda: self._logger and self._logger.close())

    def _open(self, config: LogConfig, values: Values) -> None:
        self._logger = open_logger(config, values, self._folder)

    def _read(self) -> None:
        path = self._folder / "rounds.csv"
        if self._logger is None or not path.is_file():
            return
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                number = int(row["round"])
                if number > self._logged:
                    values = {key: float(value) for key, value in row.items() if key != "round"}
                    self._logger.row(number, {key: value for key, value in values.items() if math.isfinite(value)})
                    self._logged = number

    def _try(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:  # whatever a library, a disk or a network makes of it
            self._logger = None
            self._report(f"log={self._name}: {type(error).__name__}: {' '.join(str(error).split())}; the run goes on")
