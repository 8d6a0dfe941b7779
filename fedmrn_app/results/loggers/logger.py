"""What every logger does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Logger(ABC):
    """One run in a library; made when the run starts. Whatever it raises is told once and ends the logger only."""

    @abstractmethod
    def row(self, number: int, row: Mapping[str, float]) -> None:
        """A finished round: its number, and the columns of rounds.csv that are numbers."""

    @abstractmethod
    def end(self, summary: Mapping[str, Any], curves: Path) -> None:
        """The run has completed: its summary, and the picture of its curves."""

    @abstractmethod
    def close(self) -> None:
        """Nothing more will come, whether the run has completed or not."""


def run_name(folder: Path) -> str:
    """What a run is called beside others: the ends of its folder, as `12-30-59.123-4` of a sweep."""
    return f"{folder.parent.name}-{folder.name}"
