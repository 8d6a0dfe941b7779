"""Classification of images, tables or rows of text ids with cross-entropy and accuracy.

For images it is the task of Li et al. 2024, section 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fedmrn_app.data.labels import Labels, count_classes
from fedmrn_app.data.place import Place
from fedmrn_app.data.pooling import pool_labels
from fedmrn_app.data.site_statistics import KEY as STATISTICS_KEY
from fedmrn_app.data.site_statistics import SiteStatistics
from fedmrn_app.data.summary import SplitRows
from fedmrn_app.tasks.labelled_rows import CROP_PADDING as CROP_PADDING
from fedmrn_app.tasks.labelled_rows import LabelledRows, OnDevice
from fedmrn_app.tasks.task import Samples, Split, convert, largest_share


@dataclass(frozen=True, kw_only=True)
class Classification(LabelledRows):
    """Labelled rows, see `LabelledRows`, whose labels are classes: samples store them as int64 (n,)."""

    kind: ClassVar[str] = "classification"

    task: Literal["classification"] = "classification"

    def _outputs(self) -> int | None:
        return self.classes

    def _labels_known(self) -> bool:
        return self.names is not None

    def _of_labels(self, labels: Labels, place: Place) -> dict[str, Any]:
        names, classes = self.names, self.classes
        if names is None and not (classes is not None and labels.declared):
            names, classes = count_classes(labels, place, classes)
        return {"names": names, "classes": classes if names is None else len(names)}

    def _of_sites(self, sites: Mapping[str, SiteStatistics]) -> dict[str, Any]:
        return self._of_labels(pool_labels(sites), Place(STATISTICS_KEY, f"{len(sites)} sites"))

    def _split_rows(self, split: Split, use: str, samples: Samples) -> SplitRows:
        labels = samples.y[:]
        names = self.names or tuple(map(str, range(int(self.classes or 0))))
        counts = np.bincount(labels, minlength=len(names)).tolist()
        return SplitRows(split, len(labels), use, dict(zip(names, counts, strict=True)))

    def check_outputs(self, outputs: Any, count: int) -> str | None:
        """Return why a model's outputs are not what cross-entropy takes, such as probabilities, or None."""
        if problem := super().check_outputs(outputs, count):
            return problem
        if outputs.is_meta or outputs.dim() != 2:  # those of a large model that is tried have no values
            return None
        if bool((outputs >= 0).all()) and np.allclose(outputs.float().sum(1), 1, atol=1e-3):
            return "gives probabilities, and cross-entropy takes what is before the softmax; leave the softmax out"
        return None

    def constant_score(self, samples: Samples) -> float:
        """Return the accuracy of always naming the largest class."""
        return largest_share(samples.y[:])

    def local(self, path: str) -> Classification:
        """Return the same task on a device's rows, in any form; `load` checks them against what was measured."""
        self._known_inputs()
        return convert(self, DeviceRows, path=path)


class DeviceRows(OnDevice, Classification):
    """A device's own rows with classes."""
