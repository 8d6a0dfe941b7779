"""The choice of a run's logger, and how it receives rows."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from fedmrn_app.errors import ConfigError
from fedmrn_app.results.loggers.logger import Logger


def check_library(name: str) -> None:
    """Refuse a logger whose library is not installed.

    Raises:
        ConfigError: the library is missing; the message contains the command that installs it.
    """
    if name == "none":
        return
    try:
        importlib.import_module(f"fedmrn_app.results.loggers.to_{name}")
    except ImportError as error:
        message = f'log={name}: is not installed; pip install "fedmrn[{name}]"'
        raise ConfigError(message, code="not-installed", key="log", value=name) from error


def open_logger(values: dict[str, Any], folder: Path) -> Logger | None:
    """Import the library of a configuration's logger and start a run in it; return None for `log=none`."""
    settings = values["log"]
    if settings["name"] == "none":
        return None
    module = importlib.import_module(f"fedmrn_app.results.loggers.to_{settings['name']}")
    return cast(Logger, module.RunLogger(settings, values, folder))


class Feed:
    """Passes rows to a run's logger. If the logger fails, it reports one line and ignores later rows.

    A run that resumes is logged again from its first round, so that each run of the library is complete.
    """

    def __init__(self, values: dict[str, Any], folder: Path, report: Callable[[str], None]) -> None:
        self._name = values["log"]["name"]
        self._folder = folder
        self._report = report
        self._logger: Logger | None = None
        self._try(lambda: self._open(values))

    def add(self, rows: Iterable[Mapping[str, float]]) -> None:
        """Log finished rounds, each with the columns of rounds.csv; errors of the iterable count as the logger's."""
        self._try(lambda: self._add(rows))

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Log the summary of a completed run, None for another one, and close the logger."""
        if summary is not None:
            self._try(lambda: self._logger and self._logger.end(summary, self._folder / "curves.png"))
        self._try(lambda: self._logger and self._logger.close())

    def _open(self, values: dict[str, Any]) -> None:
        self._logger = open_logger(values, self._folder)

    def _add(self, rows: Iterable[Mapping[str, float]]) -> None:
        for row in rows:
            if self._logger is not None:
                finite = {key: value for key, value in row.items() if key != "round" and math.isfinite(value)}
                self._logger.row(int(row["round"]), finite)

    def _try(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:  # a library, a disk or a network may raise anything
            self._logger = None
            reason = " ".join(str(error).split())
            self._report(f"log={self._name}: {type(error).__name__}: {reason}; the run continues without it")
