"""A run as TensorBoard's event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imread
from omegaconf import OmegaConf
from torch.utils.tensorboard import SummaryWriter

from fedmrn_app.config.schema import LogConfig, Values
from fedmrn_app.results.loggers.logger import Logger, run_name


class ToTensorBoard(Logger):
    """Scalars `rounds/COLUMN` and `summary/KEY`, the configuration as text, the curves as an image."""

    def __init__(self, config: LogConfig, values: Values, folder: Path) -> None:
        place = folder / "tensorboard" if config.folder is None else Path(config.folder) / run_name(folder)
        for before in place.glob("events.out.tfevents.*"):  # when a run goes on
            before.unlink()
        self._writer: Any = SummaryWriter(str(place), flush_secs=5)  # type: ignore[no-untyped-call]
        text = OmegaConf.to_yaml(OmegaConf.create(values))
        self._writer.add_text("config", "".join(f"    {line}\n" for line in text.splitlines()))

    def row(self, number: int, row: Mapping[str, float]) -> None:
        """See `Logger`."""
        for key, value in row.items():
            self._writer.add_scalar(f"rounds/{key}", value, number)
        self._writer.flush()

    def end(self, summary: Mapping[str, Any], curves: Path) -> None:
        """See `Logger`."""
        for key, value in summary.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(f"summary/{key}", value, summary["rounds"])
        self._writer.add_image("curves", np.asarray(imread(curves))[..., :3], summary["rounds"], dataformats="HWC")

    def close(self) -> None:
        """See `Logger`."""
        self._writer.close()
