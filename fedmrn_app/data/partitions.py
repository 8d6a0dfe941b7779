"""Which rows each client has: IID, Dirichlet or label shards, made by flwr-datasets (Li et al. 2024, 5.1.2)."""

from __future__ import annotations

import hashlib
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from fedmrn_app.errors import DataError

Scheme = Literal["iid", "dirichlet", "label_shard"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)

MIN_SAMPLES = 10  # of a Dirichlet client

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class PartitionConfig:
    """How rows are shared out.

    Attributes:
        name: `iid`, `dirichlet` (each label's rows in Dirichlet shares) or `label_shard` (k labels a client).
        alpha: concentration of the Dirichlet distribution; less is more uneven.
        labels_per_client: k, the exact number of labels a client has.
    """

    name: Scheme
    alpha: float | None = None
    labels_per_client: int | None = None


def load_partitions(
    folder: Path, labels: NDArray[np.int64], config: PartitionConfig, clients: int, seed: int
) -> list[Rows]:
    """Return each client's rows, from the cache in the data set's `folder` when it is there; see `partition_rows`."""
    key = hashlib.sha256(repr((config, clients, seed)).encode()).hexdigest()[:12]
    cached = folder / f"partition-{key}.npz"
    if not cached.is_file():
        with FileLock(f"{folder}.lock"):
            if not cached.is_file():
                parts = partition_rows(labels, config, clients, seed)
                partial = folder / f"partition-{key}.{os.getpid()}.npz"
                np.savez(partial, rows=np.concatenate(parts), sizes=[len(part) for part in parts])
                partial.replace(cached)
    with np.load(cached) as stored:
        return np.split(stored["rows"], np.cumsum(stored["sizes"])[:-1])


def partition_rows(labels: NDArray[np.int64], config: PartitionConfig, clients: int, seed: int) -> list[Rows]:
    """Share out all rows, each to exactly one client.

    Args:
        labels: int64 (n,), the rows' labels.
        config: the scheme.
        clients: number of clients.
        seed: 64-bit seed; the same one gives the same partition.

    Returns:
        One sorted vector of row numbers for each client.

    Raises:
        DataError: the rows cannot be shared out like that.
    """
    from datasets import Dataset

    if clients > len(labels):
        raise DataError(f"clients={clients}: there are only {len(labels)} training rows")
    rows = np.random.default_rng(seed).permutation(len(labels))
    partitioner = _partitioner(config, clients, len(np.unique(labels)), seed % (1 << 32))
    partitioner.dataset = Dataset.from_dict({"row": rows, "label": labels[rows]})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unused classes are an error below
            parts = [np.sort(np.asarray(partitioner.load_partition(i)["row"], np.int64)) for i in range(clients)]
    except ValueError as error:
        raise DataError(f"partition={config.name}: {str(error).splitlines()[0]}") from error
    used = np.sort(np.concatenate(parts))
    if len(used) != len(rows) or (used != np.arange(len(rows))).any():
        raise DataError(f"partition={config.name}: {clients} clients cannot use every row once; take more clients")
    return parts


def _partitioner(config: PartitionConfig, clients: int, classes: int, seed: int) -> Any:
    from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner, PathologicalPartitioner

    if config.name == "iid":
        return IidPartitioner(clients)
    if config.name == "dirichlet":
        return DirichletPartitioner(
            clients,
            "label",
            alpha=float(config.alpha or 0),
            min_partition_size=MIN_SAMPLES,
            self_balancing=False,
            seed=seed,
        )
    return PathologicalPartitioner(
        clients,
        "label",
        num_classes_per_partition=int(config.labels_per_client or 0),
        # the first label of each client in turn, so that with enough clients no label goes unused
        class_assignment_mode="first-deterministic" if clients >= classes else "deterministic",
        seed=seed,
    )
