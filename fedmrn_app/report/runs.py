"""One finished run as its folder has it: summary, settings, and the columns of its rounds."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf
from yaml import YAMLError

from fedmrn_app.config.schema import Config
from fedmrn_app.errors import RunError
from fedmrn_app.results.settings import flat

Floats = NDArray[np.float64]

# of a configuration, what does not change what is computed, or is told by the table's own columns
_UNTOLD = {"seed", "resume", "restarts", "round_timeout", "node_timeout", "strategy.name", "dataset.path"}
OF_A_GRID = ("downlink.step", "downlink.memory")  # likewise, where the global model goes down in another form
# what a run did before there was the key
_OLDER = {field.name: field.default for field in fields(Config) if field.default is not MISSING}


@dataclass(frozen=True)
class Run:
    """One finished run: its summary, its settings by dotted keys, and the columns of its rounds."""

    folder: Path
    summary: Mapping[str, Any]
    settings: Mapping[str, Any]
    columns: Mapping[str, Floats]

    @property
    def strategy(self) -> str:
        """The method's name."""
        return str(self.summary["strategy"])

    @property
    def data(self) -> str:
        """The data set and its partition, and the split that was evaluated on where it is not the test split."""
        return data_of(self.summary)

    @property
    def telling(self) -> dict[str, Any]:
        """The settings that change what is computed, but for the seed and what tables say themselves."""
        return {key: value for key, value in self.settings.items() if key not in _UNTOLD and not key.startswith("log.")}


def data_of(summary: Mapping[str, Any]) -> str:
    """What a run's metrics are of, in words."""
    split = summary.get("evaluated_on", "test")
    return f"{summary['dataset']}, {summary['partition']}" + ("" if split == "test" else f", {split}")


def read_finished(path: Path) -> Run:
    """Read the run that a summary is of.

    Raises:
        RunError: a file of the run cannot be read.
    """
    folder = path.parent
    try:
        settings = dict(flat(cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(folder / "config.yaml")))))
        with (folder / "rounds.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        columns = {key: np.array([float(row[key]) for row in rows]) for key in rows[0]}
        settings |= {key: value for key, value in _OLDER.items() if key not in settings}
        if settings.get("downlink.dtype") != "grid":
            settings = {key: value for key, value in settings.items() if key not in OF_A_GRID}
        return Run(folder, json.loads(path.read_text()), settings, columns)
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, YAMLError) as error:
        reason = " ".join(str(error).split())
        raise RunError(f"{folder}: cannot be read as a run's folder ({type(error).__name__}: {reason})") from error
