"""Results that the papers report, in percent, to compare measurements with."""

from __future__ import annotations

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
_TABLE1_ROUNDS = {"fashion_mnist": 100, "svhn": 100, "cifar10": 200, "cifar100": 200}


def published(strategy: str, dataset: str, partition: str, rounds: int) -> float | None:
    """Return the best test accuracy or mean IoU in percent that Li et al. 2024 report.

    The result is None if they report none, or if a run has fewer rounds than those of their Table 1.
    """
    if dataset in _TABLE3:
        return _TABLE3[dataset].get(strategy)
    if strategy not in _TABLE1 or dataset not in _DATA or partition not in PARTITIONS:
        return None
    if rounds < _TABLE1_ROUNDS[dataset]:
        return None
    return _TABLE1[strategy][_DATA.index(dataset)][PARTITIONS.index(partition)]
