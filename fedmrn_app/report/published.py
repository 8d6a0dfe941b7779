"""Results that the papers report, in percent, to compare measurements with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from fedmrn_app.config.compose import compose_values
from fedmrn_app.report.identity import is_shared
from fedmrn_app.report.run_names import format_setting
from fedmrn_app.results.resume import flatten

_DATA = ("fashion_mnist", "svhn", "cifar10", "cifar100")
PARTITIONS = ("iid", "dirichlet", "label_shard")
# Li et al. 2024, Table 1: the three partitions of each data set
_TABLE1 = {
    "fedavg": ((92.0, 90.5, 88.8), (92.2, 90.3, 88.9), (88.2, 84.1, 80.8), (56.1, 54.8, 54.4)),
    "fedpm": ((81.7, 78.6, 74.6), (66.3, 52.4, 48.3), (50.2, 46.3, 44.3), (22.9, 16.6, 13.4)),
    "fedsparsify": ((85.6, 80.9, 78.8), (81.3, 77.2, 72.8), (72.0, 66.8, 62.5), (32.9, 29.8, 28.8)),
    "signsgd": ((91.1, 88.4, 87.1), (90.8, 87.3, 86.5), (85.3, 75.1, 76.2), (48.0, 39.2, 44.0)),
    "topk": ((90.1, 88.6, 86.7), (90.0, 87.7, 86.4), (84.1, 77.9, 75.1), (50.2, 47.6, 43.0)),
    "terngrad": ((91.4, 89.9, 87.9), (91.7, 89.6, 87.7), (86.9, 81.9, 79.2), (53.5, 52.1, 52.3)),
    "drive": ((91.6, 89.9, 88.1), (91.6, 89.6, 87.8), (87.2, 82.4, 79.4), (53.5, 52.5, 52.8)),
    "eden": ((91.4, 89.8, 88.3), (91.7, 89.7, 87.8), (87.5, 82.6, 79.8), (53.9, 53.1, 52.9)),
    "fedmrn": ((91.8, 90.2, 88.6), (92.2, 90.0, 88.5), (88.3, 84.6, 81.4), (55.4, 54.1, 53.9)),
    "fedmrns": ((92.0, 90.5, 88.9), (92.4, 90.5, 88.7), (88.0, 84.5, 81.0), (56.1, 54.7, 54.2)),
}  # fmt: skip
# Li et al. 2024, Table 3: next-character prediction on Shakespeare, segmentation of Pascal VOC
_TABLE3 = {
    "shakespeare": {"fedavg": 51.2, "signsgd": 38.0, "eden": 49.6, "fedmrn": 51.1},
    "pascal_voc": {"fedavg": 53.8, "signsgd": 44.3, "eden": 52.0, "fedmrn": 54.2},
}
_TABLE3_EXPERIMENTS = {"shakespeare": "shakespeare", "pascal_voc": "segmentation"}
_EXPERIMENTS = {"fashion_mnist": "fmnist", "svhn": "svhn", "cifar10": "cifar10", "cifar100": "cifar100"}
_METRIC = "accuracy"  # of all published figures; the headline of a segmentation is the mean IoU
# in what a run may differ from the paper's setting: what the paper does not say, or what is checked by itself
_UNSAID = ("precision", "static_norm")
_SINCE = ("dataset", "model", "task")  # sections whose keys runs of older versions may lack


def published(strategy: str, dataset: str, partition: str, metric: str, settings: Mapping[str, Any]) -> float | None:
    """Return the best test accuracy, or share of right pixels, in percent that Li et al. 2024 report.

    The result is None if they report none, or if a run has another metric, fewer rounds or another setting than theirs.

    Args:
        strategy: the method's name.
        dataset: name of the data set.
        partition: name of the partition.
        metric: name of the run's headline metric.
        settings: the run's configuration by its dotted keys.
    """
    if dataset in _TABLE3:
        value, experiment = _TABLE3[dataset].get(strategy), _TABLE3_EXPERIMENTS[dataset]
    elif strategy in _TABLE1 and dataset in _DATA and partition in PARTITIONS:
        value = _TABLE1[strategy][_DATA.index(dataset)][PARTITIONS.index(partition)]
        experiment = f"{_EXPERIMENTS[dataset]}_{partition}"
    else:
        return None
    if value is None or metric != _METRIC:
        return None
    theirs = _setting(experiment)
    enough = settings["rounds"] >= theirs["rounds"]
    return value if enough and all(_alike(key, settings, theirs) for key in theirs) else None


@lru_cache
def _setting(experiment: str) -> dict[str, Any]:
    """Return the setting of an experiment of the paper, at its full size, by dotted keys."""
    return flatten(compose_values([f"experiment={experiment}"]))


def _alike(key: str, settings: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Return whether a run has the paper's value of a setting that a comparison assumes to be equal."""
    if not is_shared(key) or key in _UNSAID:
        return True
    own = settings.get(key, math.nan)
    if isinstance(own, float) and math.isnan(own):
        return key.partition(".")[0] in _SINCE
    return format_setting(own) == format_setting(theirs[key])
