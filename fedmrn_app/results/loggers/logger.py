"""The interface of loggers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Logger(ABC):
    """Records one run in a library. An exception in a method ends the logger, not the run."""

    @abstractmethod
    def __init__(self, settings: Mapping[str, Any], values: dict[str, Any], folder: Path) -> None:
        """Start a run in the library.

        Args:
            settings: the configuration group `log`.
            values: the run's whole configuration, as plain nested values.
            folder: the run's folder.
        """

    @abstractmethod
    def row(self, number: int, row: Mapping[str, float]) -> None:
        """Record a finished round: its number, and the finite columns of rounds.csv."""

    @abstractmethod
    def end(self, summary: Mapping[str, Any], curves: Path) -> None:
        """Record the summary of a completed run and the image of its curves."""

    @abstractmethod
    def close(self) -> None:
        """Close the library's run, completed or not."""


def run_name(folder: Path) -> str:
    """Return the run's name in a library: the end of its folder's path, such as `12-30-59.123-4` in a sweep."""
    return f"{folder.parent.name}-{folder.name}"
