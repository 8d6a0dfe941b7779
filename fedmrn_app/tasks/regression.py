"""Regression on images, tables or rows of text ids: least squares on standardized labels, R2, RMSE and MAE.

label -> (label - target_mean) / target_std -> mean squared error with the model's only output
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedmrn_app.data.labels import spread_of
from fedmrn_app.data.place import Place
from fedmrn_app.data.pooling import pool_target
from fedmrn_app.data.site_statistics import SiteStatistics
from fedmrn_app.data.statistics import standard
from fedmrn_app.data.summary import SplitRows
from fedmrn_app.errors import ConfigError
from fedmrn_app.tasks.labelled_rows import LabelledRows, OnDevice
from fedmrn_app.tasks.task import Report, Samples, Split, convert
from fedmrn_app.validation import Positive

_SCALE = ("target_mean", "target_std")


@dataclass(frozen=True, kw_only=True)
class Regression(LabelledRows):
    """Labelled rows, see `LabelledRows`, whose labels are a quantity: samples store them as float64 (n,).

    The loss is the mean squared error of standardized labels: 1 is that of the constant that fits best. The metrics are
    R2, the share of the variance that the model explains, and the root of the mean squared error (RMSE) and the mean
    absolute error (MAE), both in the unit of the labels.
    """

    kind: ClassVar[str] = "regression"
    metrics: ClassVar[tuple[str, ...]] = ("r2", "rmse", "mae")
    less_is_better: ClassVar[tuple[str, ...]] = ("rmse", "mae")
    quantity: ClassVar[bool] = True

    task: Literal["regression"] = "regression"
    target_mean: float | None = None  # of the labels, in their unit
    target_std: Positive | None = None

    def __post_init__(self) -> None:
        if self.name != "own":
            problem = "dataset.task=regression: needs rows of your own, dataset=own dataset.path=PLACE"
            raise ConfigError(problem, code="dataset", key="dataset.task", value=self.kind)
        for key in ("classes", "names"):
            if (value := getattr(self, key)) is not None:
                problem = "a quantity has no classes; set it to null, or leave task=regression out"
                raise ConfigError(
                    f"dataset.{key}={value}: {problem}", code="dataset", key=f"dataset.{key}", value=value
                )
        super().__post_init__()

    def batch(self, x: Tensor, y: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return what the model takes, see `LabelledRows.batch`, and the standardized labels, float32 (b,)."""
        inputs, _ = super().batch(x, y, generator)
        return inputs, ((y.double() - (self.target_mean or 0.0)) / (self.target_std or 1.0)).float()

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean squared error of a batch, in units of the labels' variance."""
        return functional.mse_loss(outputs[:, 0], y)

    def in_units(self, outputs: Tensor) -> Tensor:
        """Return what a model predicts in the unit of the labels, float (n,), from its outputs (n, 1)."""
        return outputs[:, 0] * (self.target_std or 1.0) + (self.target_mean or 0.0)

    @property
    def tally_shape(self) -> tuple[int, ...]:
        """The shape of the sums."""
        return (5,)

    def tally(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the number of rows and the sums of squared errors, absolute errors, labels and squared labels.

        All are float64 (5,), and of standardized labels.
        """
        y = y.double()
        error = outputs[:, 0].double() - y
        sums = [error.square().sum(), error.abs().sum(), y.sum(), y.square().sum()]
        return torch.stack([torch.full_like(sums[0], len(y)), *sums])

    def read(self, tally: NDArray[Any]) -> dict[str, float]:
        """Return R2, RMSE and MAE; R2 is NaN where all labels are the same."""
        count, squared, absolute, total, squares = map(float, tally)
        spread, scale = squares - total**2 / count, self.target_std or 1.0
        known = spread > 1e-9 * max(squares, 1e-9)  # what is left of equal labels is rounding
        return {
            "r2": 1 - squared / spread if known else math.nan,
            "rmse": scale * math.sqrt(squared / count) if squared >= 0 else math.nan,
            "mae": scale * absolute / count,
        }

    def constant_score(self, samples: Samples) -> float:
        """Return the R2 of the labels' mean, which is 0."""
        return 0.0

    def local(self, path: str) -> Regression:
        """Return the same task on a device's rows, in any form; `load` checks them against what was measured."""
        self._known_inputs()
        return convert(self, DeviceQuantities, path=path)

    def _outputs(self) -> int | None:
        return 1

    def _labels_known(self) -> bool:
        return None not in (self.target_mean, self.target_std)

    def _of_values(self, y: NDArray[Any], place: Place) -> dict[str, Any]:
        if y.min() == y.max():
            raise place.error("classes", f"all {len(y)} labels are {y[0]:g}; there is nothing to learn")
        return dict(zip(_SCALE, standard(np.asarray(y)), strict=True))

    def _of_sites(self, sites: Mapping[str, SiteStatistics]) -> dict[str, Any]:
        return dict(zip(_SCALE, pool_target(sites), strict=True))

    def _unmeasured(self, report: Report | None) -> Regression:
        if not self._labels_known():
            problem = "no rows to measure here; set dataset.target_mean and dataset.target_std to those of the labels"
            raise ConfigError(f"dataset.target_std=null: {problem}", code="missing", key="dataset.target_std")
        return super()._unmeasured(report)

    def _split_rows(self, split: Split, use: str, samples: Samples) -> SplitRows:
        labels = np.asarray(samples.y[:])
        return SplitRows(split, len(labels), use, {}, f"labels {spread_of(labels)}")


class DeviceQuantities(OnDevice, Regression):
    """A device's own rows with a quantity."""
