"""Logger for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imread
from omegaconf import OmegaConf
from torch.utils.tensorboard import SummaryWriter

from fedmrn_app.results.loggers.logger import Logger, run_name


class RunLogger(Logger):
    """Logs scalars `rounds/COLUMN` and `summary/KEY`, the configuration as text, and the curves as an image."""

    def __init__(self, settings: Mapping[str, Any], values: dict[str, Any], folder: Path) -> None:
        place = folder / "tensorboard" if settings["folder"] is None else Path(settings["folder"]) / run_name(folder)
        for old in place.glob("events.out.tfevents.*"):  # of a run that resumes
            old.unlink()
        self._writer: Any = SummaryWriter(str(place), flush_secs=5)  # type: ignore[no-untyped-call]
        text = OmegaConf.to_yaml(OmegaConf.create(values))
        self._writer.add_text("config", "".join(f"    {line}\n" for line in text.splitlines()))

    def row(self, number: int, row: Mapping[str, float]) -> None:
        """Log the columns as scalars of this step."""
        for key, value in row.items():
            self._writer.add_scalar(f"rounds/{key}", value, number)
        self._writer.flush()

    def end(self, summary: Mapping[str, Any], curves: Path) -> None:
        """Log the numbers of the summary and the curves."""
        for key, value in summary.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(f"summary/{key}", value, summary["rounds"])
        self._writer.add_image("curves", np.asarray(imread(curves))[..., :3], summary["rounds"], dataformats="HWC")

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()
